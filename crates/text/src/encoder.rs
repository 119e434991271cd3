//! Converts texts to tokens.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use tokenizers::{
    EncodeInput, Encoding, PostProcessor, Tokenizer, TruncationDirection, TruncationParams,
    TruncationStrategy,
};

use crate::error::TextModelError;

/// The treatment of texts with too many tokens.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// The end of the text is cut off.
    TruncateRight,
    /// The beginning of the text is cut off.
    TruncateLeft,
    /// The text is refused.
    Refuse,
}

/// The tokens of a text, or of a pair of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRow {
    /// The number of each token in the vocabulary.
    pub ids: Vec<u32>,
    /// The number of the text that each token belongs to, as the model distinguishes them.
    pub type_ids: Vec<u32>,
}

/// Converts texts to tokens. Threads can share it.
pub(crate) struct TextEncoder {
    tokenizer: Tokenizer,
    tokens_max: usize,
    /// A copy with one more token, which recognizes texts with too many tokens. The library stops
    /// at the limit, so the tokens of a truncated text don't show whether there are more. Models
    /// that refuse such texts get the copy at load, and other models when a request refuses them.
    longer: OnceLock<Box<Tokenizer>>,
}

impl TextEncoder {
    /// Reads a tokenizer from the content of `tokenizer.json`. Texts are truncated to `tokens_max`
    /// tokens, including special tokens.
    pub(crate) fn read(
        file: &str,
        content: &[u8],
        tokens_max: usize,
        overflow: Overflow,
    ) -> Result<Self, TextModelError> {
        let invalid = |problem: String| TextModelError::new(file, problem);
        let read = || Tokenizer::from_bytes(content);
        let mut tokenizer = without_panic(read).map_err(invalid)?;
        let added = |is_pair| {
            tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(is_pair))
        };
        let added = without_panic(|| Ok(added(false).max(added(true)))).map_err(invalid)?;
        if tokens_max <= added {
            return Err(invalid(format!(
                "the tokenizer adds {added} special tokens, and a text may have only {tokens_max}"
            )));
        }
        let direction = match overflow {
            Overflow::TruncateRight | Overflow::Refuse => TruncationDirection::Right,
            Overflow::TruncateLeft => TruncationDirection::Left,
        };
        let truncation = TruncationParams {
            direction,
            max_length: tokens_max,
            strategy: TruncationStrategy::LongestFirst,
            stride: 0,
        };
        tokenizer.with_padding(None);
        tokenizer
            .with_truncation(Some(truncation))
            .map_err(|error| invalid(escaped(&error.to_string())))?;
        let encoder = Self { tokenizer, tokens_max, longer: OnceLock::new() };
        if overflow == Overflow::Refuse {
            encoder.longer();
        }
        Ok(encoder)
    }

    /// The maximum number of tokens of a text, or of a pair of texts.
    pub(crate) const fn tokens_max(&self) -> usize {
        self.tokens_max
    }

    /// Converts a text, or a pair of texts, to tokens.
    ///
    /// # Errors
    ///
    /// The reason why the tokenizer can't convert the text.
    pub(crate) fn encode(&self, text: &str, second: Option<&str>) -> Result<TokenRow, String> {
        let encoding = encoding(&self.tokenizer, text, second)?;
        let (ids, type_ids) = (encoding.get_ids().to_vec(), encoding.get_type_ids().to_vec());
        Ok(TokenRow { ids, type_ids })
    }

    /// Returns true if a text, or a pair of texts, has too many tokens. `row` contains the tokens
    /// after truncation.
    pub(crate) fn was_truncated(
        &self,
        row: &TokenRow,
        text: &str,
        second: Option<&str>,
    ) -> Result<bool, String> {
        if row.ids.len() < self.tokens_max {
            return Ok(false);
        }
        Ok(encoding(self.longer(), text, second)?.len() > self.tokens_max)
    }

    fn longer(&self) -> &Tokenizer {
        self.longer.get_or_init(|| {
            let mut longer = Box::new(self.tokenizer.clone());
            if let Some(truncation) = longer.get_truncation_mut() {
                truncation.max_length = self.tokens_max.saturating_add(1);
            }
            longer
        })
    }

    /// Returns the number of tokens that a prompt puts in front of a text, including special tokens
    /// at the beginning.
    pub(crate) fn prompt_length(&self, prompt: &str) -> Result<usize, String> {
        let encoding = encoding(&self.tokenizer, prompt, None)?;
        let special = encoding.get_special_tokens_mask().iter().rev();
        let at_end = special.take_while(|is_special| **is_special == 1).count();
        Ok(encoding.len().saturating_sub(at_end))
    }
}

fn encoding(tokenizer: &Tokenizer, text: &str, second: Option<&str>) -> Result<Encoding, String> {
    without_panic(|| {
        let input: EncodeInput<'_> = match second {
            Some(second) => (text, second).into(),
            None => text.into(),
        };
        tokenizer.encode_fast(input, true)
    })
}

impl std::fmt::Debug for TextEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextEncoder").field("tokens_max", &self.tokens_max).finish_non_exhaustive()
    }
}

/// Calls the tokenizer's library. It panics on some invalid files, and on some texts if the file is
/// invalid. Its values are either dropped after a panic, or caches that a panic leaves consistent.
fn without_panic<T>(call: impl FnOnce() -> Result<T, tokenizers::Error>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| escaped(&error.to_string())),
        Err(_) => Err(String::from("the tokenizer is invalid: its library panicked")),
    }
}

/// The beginning of a message from the library, which can contain a part of the file.
fn escaped(message: &str) -> String {
    message.chars().take(500).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tokenizer of words, with `[CLS]` and `[SEP]` as in BERT.
    const WORDS: &str = r#"{
        "version": "1.0", "truncation": null,
        "padding": {"strategy": {"Fixed": 4000000000}, "direction": "Right",
            "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": [], "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]},
        "decoder": null,
        "model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab":
            {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "a": 4, "b": 5, "c": 6, "d": 7}}
    }"#;

    fn encoder(tokens_max: usize, overflow: Overflow) -> TextEncoder {
        TextEncoder::read("tokenizer.json", WORDS.as_bytes(), tokens_max, overflow).unwrap()
    }

    #[test]
    fn texts_become_tokens_without_padding() {
        let row = encoder(8, Overflow::TruncateRight).encode("A b x", None).unwrap();
        assert_eq!((row.ids, row.type_ids), (vec![1, 4, 5, 3, 2], vec![0; 5]));
        let row = encoder(8, Overflow::TruncateRight).encode("a", Some("b")).unwrap();
        assert_eq!((row.ids, row.type_ids), (vec![1, 4, 2, 5, 2], vec![0, 0, 0, 1, 1]));
    }

    #[test]
    fn long_texts_are_truncated_on_one_side() {
        let check = |overflow, second, expected: &[u32]| {
            let encoder = encoder(5, overflow);
            let row = encoder.encode("a b c d", second).unwrap();
            assert_eq!(row.ids, expected);
            assert!(encoder.was_truncated(&row, "a b c d", second).unwrap());
        };
        check(Overflow::TruncateRight, None, &[1, 4, 5, 6, 2]);
        check(Overflow::TruncateLeft, None, &[1, 5, 6, 7, 2]);
        check(Overflow::TruncateRight, Some("d"), &[1, 4, 2, 7, 2]);
        let encoder = encoder(5, Overflow::TruncateRight);
        let row = encoder.encode("a b c", None).unwrap();
        assert!(!encoder.was_truncated(&row, "a b c", None).unwrap());
    }

    #[test]
    fn a_model_that_refuses_long_texts_has_both_tokenizers_at_load() {
        assert!(encoder(5, Overflow::Refuse).longer.get().is_some());
        assert!(encoder(5, Overflow::TruncateRight).longer.get().is_none());
    }

    #[test]
    fn a_prompt_has_the_tokens_before_the_text() {
        let encoder = encoder(8, Overflow::TruncateRight);
        assert_eq!(encoder.prompt_length("a b").unwrap(), 3);
        assert_eq!(encoder.prompt_length("").unwrap(), 0);
    }

    #[test]
    fn invalid_tokenizers_are_refused() {
        let check = |content: &[u8], tokens_max, expected: &str| {
            let read = TextEncoder::read("t", content, tokens_max, Overflow::Refuse);
            let error = read.unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        };
        check(b"", 8, "t: EOF while parsing");
        check(b"{}", 8, "t: ");
        check(&WORDS.as_bytes()[..300], 8, "t: EOF while parsing");
        check(b"\xff", 8, "t: ");
        let expected = "t: the tokenizer adds 3 special tokens, and a text may have only 3";
        check(WORDS.as_bytes(), 3, expected);
    }
}
