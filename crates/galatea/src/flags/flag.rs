//! A flag of the command line: its name, its help, and the form of its value.
//!
//! The form of most flags says where the value goes. It shows the default too, which stands in
//! [`Settings::default`] alone.

use std::path::{Path, PathBuf};

use galatea_codec::forward::HeaderForward;

use super::Settings;
use super::value::{self, InvalidValue};

/// A flag of the command line.
pub(crate) struct Flag {
    /// The name without its dashes.
    pub(super) name: &'static str,
    /// The word for its value in the usage text; `None` for a switch.
    pub(super) argument: Option<&'static str>,
    /// Its effect, in a sentence or two.
    pub(super) help: &'static str,
    form: ValueForm,
}

/// The setting that a flag changes.
type SettingOf<T> = fn(&mut Settings) -> &mut T;

/// Puts a value into effect.
type Apply = fn(&mut Settings, &str) -> Result<(), InvalidValue>;

/// The kind of a value, and the setting that it becomes.
enum ValueForm {
    /// No value.
    Switch(fn(&mut Settings)),
    Boolean(SettingOf<bool>),
    /// A boolean that is no setting by itself; `shown` is `None` without a default.
    Decision {
        shown: fn(&Settings) -> Option<bool>,
        apply: fn(&mut Settings, bool),
    },
    Text(SettingOf<String>),
    Port(SettingOf<u16>),
    /// A number that is 0 if it is negative.
    Number(SettingOf<u32>),
    /// A number of threads, of which there is one at least.
    Threads(SettingOf<usize>),
    /// The path of a directory, which is not empty.
    Directory(SettingOf<PathBuf>),
    /// The path of a file; an empty one is none.
    File(SettingOf<Option<PathBuf>>),
    /// A pattern for names of headers; an empty one is none.
    Pattern(SettingOf<Option<HeaderForward>>),
    /// Anything else. The default is a value that could be given, or empty.
    Other {
        default: fn(&Settings) -> String,
        apply: Apply,
    },
}

/// The default of a flag that has none.
pub(super) fn no_default(_: &Settings) -> String {
    String::new()
}

impl Flag {
    const fn new(
        name: &'static str,
        argument: Option<&'static str>,
        help: &'static str,
        form: ValueForm,
    ) -> Self {
        Self { name, argument, help, form }
    }

    /// A flag without a value.
    pub(super) const fn switch(
        name: &'static str,
        help: &'static str,
        apply: fn(&mut Settings),
    ) -> Self {
        Self::new(name, None, help, ValueForm::Switch(apply))
    }

    /// True or false.
    pub(super) const fn boolean(
        name: &'static str,
        help: &'static str,
        place: SettingOf<bool>,
    ) -> Self {
        Self::new(name, Some("boolean"), help, ValueForm::Boolean(place))
    }

    /// True or false, which changes more than a setting of that type.
    pub(super) const fn decision(
        name: &'static str,
        help: &'static str,
        shown: fn(&Settings) -> Option<bool>,
        apply: fn(&mut Settings, bool),
    ) -> Self {
        Self::new(name, Some("boolean"), help, ValueForm::Decision { shown, apply })
    }

    /// Any text.
    pub(super) const fn text(
        name: &'static str,
        help: &'static str,
        place: SettingOf<String>,
    ) -> Self {
        Self::new(name, Some("string"), help, ValueForm::Text(place))
    }

    /// A port.
    pub(super) const fn port(
        name: &'static str,
        help: &'static str,
        place: SettingOf<u16>,
    ) -> Self {
        Self::new(name, Some("integer"), help, ValueForm::Port(place))
    }

    /// A number, which is 0 if it is negative.
    pub(super) const fn number(
        name: &'static str,
        help: &'static str,
        place: SettingOf<u32>,
    ) -> Self {
        Self::new(name, Some("integer"), help, ValueForm::Number(place))
    }

    /// A number of threads.
    pub(super) const fn threads(
        name: &'static str,
        help: &'static str,
        place: SettingOf<usize>,
    ) -> Self {
        Self::new(name, Some("integer"), help, ValueForm::Threads(place))
    }

    /// A directory.
    pub(super) const fn directory(
        name: &'static str,
        help: &'static str,
        place: SettingOf<PathBuf>,
    ) -> Self {
        Self::new(name, Some("string"), help, ValueForm::Directory(place))
    }

    /// A file.
    pub(super) const fn file(
        name: &'static str,
        help: &'static str,
        place: SettingOf<Option<PathBuf>>,
    ) -> Self {
        Self::new(name, Some("string"), help, ValueForm::File(place))
    }

    /// A pattern for names of headers.
    pub(super) const fn pattern(
        name: &'static str,
        help: &'static str,
        place: SettingOf<Option<HeaderForward>>,
    ) -> Self {
        Self::new(name, Some("string"), help, ValueForm::Pattern(place))
    }

    /// A value that no other form fits.
    pub(super) const fn other(
        name: &'static str,
        argument: &'static str,
        default: fn(&Settings) -> String,
        help: &'static str,
        apply: Apply,
    ) -> Self {
        Self::new(name, Some(argument), help, ValueForm::Other { default, apply })
    }

    /// Puts a value into effect; a switch gets an empty one.
    pub(super) fn apply(&self, settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
        match self.form {
            ValueForm::Switch(apply) => apply(settings),
            ValueForm::Boolean(place) => *place(settings) = value::boolean(value)?,
            ValueForm::Decision { apply, .. } => apply(settings, value::boolean(value)?),
            ValueForm::Text(place) => value.clone_into(place(settings)),
            ValueForm::Port(place) => *place(settings) = value::port(settings, self.name, value)?,
            ValueForm::Number(place) => *place(settings) = value::not_negative(value)?,
            // Triton serves with 0 too, and ends with an error below.
            ValueForm::Threads(place) => *place(settings) = value::number::<usize>(value)?.max(1),
            ValueForm::Directory(_) if value.is_empty() => {
                return Err(InvalidValue(format!("--{} can not be empty", self.name)));
            }
            ValueForm::Directory(place) => *place(settings) = PathBuf::from(value),
            ValueForm::File(place) => {
                *place(settings) = (!value.is_empty()).then(|| Path::new(value).to_owned());
            }
            ValueForm::Pattern(place) => *place(settings) = value::header_pattern(value)?,
            ValueForm::Other { apply, .. } => return apply(settings, value),
        }
        Ok(())
    }

    /// The default as a value that could be given; empty if there is none.
    pub(super) fn default_value(&self) -> String {
        let mut settings = Settings::default();
        let settings = &mut settings;
        match self.form {
            ValueForm::Boolean(place) => place(settings).to_string(),
            ValueForm::Decision { shown, .. } => {
                shown(settings).map_or_else(String::new, |value| value.to_string())
            }
            ValueForm::Text(place) => place(settings).clone(),
            ValueForm::Port(place) => place(settings).to_string(),
            ValueForm::Number(place) => place(settings).to_string(),
            ValueForm::Threads(place) => place(settings).to_string(),
            ValueForm::Directory(place) => place(settings).display().to_string(),
            ValueForm::Other { default, .. } => default(settings),
            ValueForm::Switch(_) | ValueForm::File(_) | ValueForm::Pattern(_) => String::new(),
        }
    }
}
