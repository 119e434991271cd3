//! A flag of the command line: its name, its help, and the form of its value.
//!
//! For most flags, the form determines where the value is stored. The form also renders the
//! default, which is defined only in [`Settings::default`].

use std::path::{Path, PathBuf};

use galatea_codec::forward::HeaderForwardPattern;

use super::Settings;
use super::value::{self, InvalidValue};

/// A command-line flag.
pub(crate) struct Flag {
    /// The name, without its dashes.
    pub(super) name: &'static str,
    /// The placeholder for the value in the usage text; `None` for a switch.
    pub(super) argument: Option<&'static str>,
    /// The flag's effect, in a sentence or two.
    pub(super) help: &'static str,
    form: ValueForm,
}

/// The setting that a flag changes.
type SettingOf<T> = fn(&mut Settings) -> &mut T;

/// A function that applies a value to the settings.
type Apply = fn(&mut Settings, &str) -> Result<(), InvalidValue>;

/// The form of a value and the setting that stores it.
enum ValueForm {
    /// The flag has no value.
    Switch(fn(&mut Settings)),
    Boolean(SettingOf<bool>),
    /// A boolean that isn't stored as a setting of its own; `shown` is `None` if the flag has no
    /// default.
    Decision {
        shown: fn(&Settings) -> Option<bool>,
        apply: fn(&mut Settings, bool),
    },
    Text(SettingOf<String>),
    Port(SettingOf<u16>),
    /// A number; negative values become 0.
    Number(SettingOf<u32>),
    /// A number of threads, at least one.
    Threads(SettingOf<usize>),
    /// The path of a directory, which must not be empty.
    Directory(SettingOf<PathBuf>),
    /// The path of a file; an empty path means none.
    File(SettingOf<Option<PathBuf>>),
    /// A pattern for header names; an empty pattern means none.
    Pattern(SettingOf<Option<HeaderForwardPattern>>),
    /// Any other form. The default is either a valid value of the flag or empty.
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

    /// Creates a flag without a value.
    pub(super) const fn switch(
        name: &'static str,
        help: &'static str,
        apply: fn(&mut Settings),
    ) -> Self {
        Self::new(name, None, help, ValueForm::Switch(apply))
    }

    /// Creates a boolean flag.
    pub(super) const fn boolean(
        name: &'static str,
        help: &'static str,
        place: SettingOf<bool>,
    ) -> Self {
        Self::new(name, Some("boolean"), help, ValueForm::Boolean(place))
    }

    /// Creates a boolean flag that changes more than one boolean setting.
    pub(super) const fn decision(
        name: &'static str,
        help: &'static str,
        shown: fn(&Settings) -> Option<bool>,
        apply: fn(&mut Settings, bool),
    ) -> Self {
        Self::new(name, Some("boolean"), help, ValueForm::Decision { shown, apply })
    }

    /// Creates a flag that accepts any text.
    pub(super) const fn text(
        name: &'static str,
        help: &'static str,
        place: SettingOf<String>,
    ) -> Self {
        Self::new(name, Some("string"), help, ValueForm::Text(place))
    }

    /// Creates a flag for a port.
    pub(super) const fn port(
        name: &'static str,
        help: &'static str,
        place: SettingOf<u16>,
    ) -> Self {
        Self::new(name, Some("integer"), help, ValueForm::Port(place))
    }

    /// Creates a flag for a number; negative values become 0.
    pub(super) const fn number(
        name: &'static str,
        help: &'static str,
        place: SettingOf<u32>,
    ) -> Self {
        Self::new(name, Some("integer"), help, ValueForm::Number(place))
    }

    /// Creates a flag for a number of threads.
    pub(super) const fn threads(
        name: &'static str,
        help: &'static str,
        place: SettingOf<usize>,
    ) -> Self {
        Self::new(name, Some("integer"), help, ValueForm::Threads(place))
    }

    /// Creates a flag for a directory.
    pub(super) const fn directory(
        name: &'static str,
        help: &'static str,
        place: SettingOf<PathBuf>,
    ) -> Self {
        Self::new(name, Some("string"), help, ValueForm::Directory(place))
    }

    /// Creates a flag for a file.
    pub(super) const fn file(
        name: &'static str,
        help: &'static str,
        place: SettingOf<Option<PathBuf>>,
    ) -> Self {
        Self::new(name, Some("string"), help, ValueForm::File(place))
    }

    /// Creates a flag for a header-name pattern.
    pub(super) const fn pattern(
        name: &'static str,
        help: &'static str,
        place: SettingOf<Option<HeaderForwardPattern>>,
    ) -> Self {
        Self::new(name, Some("string"), help, ValueForm::Pattern(place))
    }

    /// Creates a flag whose value fits no other form.
    pub(super) const fn other(
        name: &'static str,
        argument: &'static str,
        default: fn(&Settings) -> String,
        help: &'static str,
        apply: Apply,
    ) -> Self {
        Self::new(name, Some(argument), help, ValueForm::Other { default, apply })
    }

    /// Applies a value to the settings; for a switch, the value is empty.
    pub(super) fn apply(&self, settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
        match self.form {
            ValueForm::Switch(apply) => apply(settings),
            ValueForm::Boolean(place) => *place(settings) = value::boolean(value)?,
            ValueForm::Decision { apply, .. } => apply(settings, value::boolean(value)?),
            ValueForm::Text(place) => value.clone_into(place(settings)),
            ValueForm::Port(place) => *place(settings) = value::port(settings, self.name, value)?,
            ValueForm::Number(place) => *place(settings) = value::not_negative(value)?,
            // Triton also serves with 0 threads, and ends with an error for negative numbers.
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

    /// The default, as a valid value of the flag; empty if the flag has no default.
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
