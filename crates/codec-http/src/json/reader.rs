//! Walks over the values of a JSON text.

use std::borrow::Cow;

use galatea_codec::json::unescaped_prefix_length;
use galatea_codec::limits::MessageLimits;
use galatea_infer::Status;

use super::cursor::JsonReader;
use super::number::{self, Number};

/// The type of a value, determined by its first character.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum JsonType {
    Object,
    Array,
    String,
    Number,
    Bool,
    Null,
}

/// The position in an array or object.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContainerPosition {
    /// After the opening bracket.
    Opened,
    /// After the first value was returned.
    Inside,
}

impl<'a> JsonReader<'a> {
    /// Returns the type of the next value.
    #[inline]
    pub(crate) fn value_type(&mut self) -> Result<JsonType, Status> {
        match self.peek() {
            Some(b'{') => Ok(JsonType::Object),
            Some(b'[') => Ok(JsonType::Array),
            Some(b'"') => Ok(JsonType::String),
            Some(b'-' | b'0'..=b'9' | b'N' | b'I') => Ok(JsonType::Number),
            Some(b't' | b'f') => Ok(JsonType::Bool),
            Some(b'n') => Ok(JsonType::Null),
            Some(_) => Err(self.invalid_value()),
            None if self.is_empty_document() => Err(self.error("The document is empty.")),
            None => Err(self.invalid_value()),
        }
    }

    /// Checks that nothing follows the root value.
    pub(crate) fn end(&mut self) -> Result<(), Status> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.error("The document root must not be followed by other values.")),
        }
    }

    /// Consumes the opening bracket of an array or object.
    pub(crate) fn open(&mut self) -> ContainerPosition {
        self.consume();
        ContainerPosition::Opened
    }

    /// Moves to the array's next element. Returns false after the last one.
    #[inline]
    pub(crate) fn next_element(
        &mut self,
        position: &mut ContainerPosition,
    ) -> Result<bool, Status> {
        if *position == ContainerPosition::Inside {
            return self.following_element();
        }
        *position = ContainerPosition::Inside;
        let empty = self.peek() == Some(b']');
        if empty {
            self.consume();
        }
        Ok(!empty)
    }

    /// Moves to the object's next member and returns its name, which is borrowed from the text
    /// unless it has escapes. Returns `None` after the last member.
    pub(crate) fn next_member(
        &mut self,
        position: &mut ContainerPosition,
    ) -> Result<Option<Cow<'a, [u8]>>, Status> {
        match self.compact_member(position) {
            Some(name) => Ok(Some(Cow::Borrowed(name))),
            None => self.any_member(position),
        }
    }

    /// The fast path for the usual case, a name without escapes or surrounding whitespace.
    #[inline]
    fn compact_member(&mut self, position: &mut ContainerPosition) -> Option<&'a [u8]> {
        let rest = match (*position, self.rest) {
            (ContainerPosition::Opened, [b'"', rest @ ..]) => rest,
            (ContainerPosition::Inside, [b',', b'"', rest @ ..]) => rest,
            _ => return None,
        };
        let (name, rest) = rest.split_at_checked(unescaped_prefix_length(rest))?;
        let [b'"', b':', rest @ ..] = rest else { return None };
        self.rest = rest;
        *position = ContainerPosition::Inside;
        Some(name)
    }

    fn any_member(
        &mut self,
        position: &mut ContainerPosition,
    ) -> Result<Option<Cow<'a, [u8]>>, Status> {
        let next = self.peek();
        match (*position, next) {
            (_, Some(b'}')) => {
                self.consume();
                return Ok(None);
            }
            (ContainerPosition::Opened, _) => *position = ContainerPosition::Inside,
            (ContainerPosition::Inside, Some(b',')) => self.consume(),
            (ContainerPosition::Inside, _) => {
                return Err(self.error("Missing a comma or '}' after an object member."));
            }
        }
        if self.peek() != Some(b'"') {
            return Err(self.error("Missing a name for object member."));
        }
        let name = self.string()?;
        if self.peek() != Some(b':') {
            return Err(self.error("Missing a colon after a name of object member."));
        }
        self.consume();
        Ok(Some(name))
    }

    /// Consumes the opening bracket of an array. Returns true if the array is empty, in which case
    /// its closing bracket is also consumed.
    pub(crate) fn open_array(&mut self) -> bool {
        self.consume();
        let empty = self.peek() == Some(b']');
        if empty {
            self.consume();
        }
        empty
    }

    /// Moves past an element. Returns false if the array has ended.
    #[inline]
    pub(crate) fn following_element(&mut self) -> Result<bool, Status> {
        match self.peek() {
            Some(b',') => {
                self.consume();
                Ok(true)
            }
            Some(b']') => {
                self.consume();
                Ok(false)
            }
            _ => Err(self.error("Missing a comma or ']' after an array element.")),
        }
    }

    /// Reads `true` or `false`.
    pub(crate) fn boolean(&mut self) -> Result<bool, Status> {
        let word: &[u8] = if self.peek() == Some(b't') { b"true" } else { b"false" };
        self.expect_word(word)?;
        Ok(word.len() == 4)
    }

    /// Reads a number.
    #[inline]
    pub(crate) fn number(&mut self) -> Result<Number, Status> {
        number::read(self)
    }

    /// Skips a value of any type and checks its syntax.
    pub(crate) fn skip_value(&mut self) -> Result<(), Status> {
        let mut open: Vec<(JsonType, ContainerPosition)> = Vec::new();
        loop {
            match self.value_type()? {
                kind @ (JsonType::Object | JsonType::Array) => {
                    if open.len() >= MessageLimits::JSON_DEPTH_MAX {
                        return Err(depth_exceeded());
                    }
                    let position = self.open();
                    open.push((kind, position));
                }
                JsonType::String => self.skip_string()?,
                JsonType::Number => drop(self.number()?),
                JsonType::Bool => drop(self.boolean()?),
                JsonType::Null => self.expect_word(b"null")?,
            }
            if !self.advance(&mut open)? {
                return Ok(());
            }
        }
    }

    /// Closes finished arrays and objects. Returns false when no array or object is left open.
    fn advance(&mut self, open: &mut Vec<(JsonType, ContainerPosition)>) -> Result<bool, Status> {
        while let Some((kind, position)) = open.last_mut() {
            let more = if *kind == JsonType::Array {
                self.next_element(position)?
            } else {
                self.next_member(position)?.is_some()
            };
            if more {
                return Ok(true);
            }
            open.pop();
        }
        Ok(false)
    }
}

/// The error for a text that is nested too deeply.
pub(crate) fn depth_exceeded() -> Status {
    Status::invalid_argument(format!(
        "JSON nesting depth exceeds maximum allowed limit ({})",
        MessageLimits::JSON_DEPTH_MAX
    ))
}
