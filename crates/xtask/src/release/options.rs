//! The options of `cargo xtask release`.

use std::path::PathBuf;

use crate::image;
use crate::target::Target;

/// The demand for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImageDemand {
    /// The release fails without an image.
    Needed,
    /// The image is left out if no program can build it, and the release says so.
    IfPossible,
    /// The image is left out.
    None,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// True for a draft release, which may contain uncommitted changes and the "Unreleased" section
    /// of CHANGELOG.md.
    pub(crate) is_draft: bool,
    pub(crate) folder: Option<PathBuf>,
    pub(crate) targets: Vec<Target>,
    pub(crate) image: ImageDemand,
    pub(crate) base: Option<String>,
}

impl Options {
    pub(crate) fn parse(mut rest: &[&str]) -> Result<Self, String> {
        let mut options = Self {
            is_draft: false,
            folder: None,
            targets: Vec::new(),
            image: ImageDemand::IfPossible,
            base: None,
        };
        loop {
            rest = match rest {
                [] => break,
                ["--draft", rest @ ..] => {
                    options.is_draft = true;
                    rest
                }
                ["--output", folder, rest @ ..] => {
                    options.folder = Some(PathBuf::from(folder));
                    rest
                }
                ["--target", name, rest @ ..] => {
                    let target = Target::named(name)?;
                    if !options.targets.contains(&target) {
                        options.targets.push(target);
                    }
                    rest
                }
                ["--image", rest @ ..] => {
                    options.image = ImageDemand::Needed;
                    rest
                }
                ["--without-image", rest @ ..] => {
                    options.image = ImageDemand::None;
                    rest
                }
                ["--base", base, rest @ ..] => {
                    options.base = Some((*base).to_owned());
                    rest
                }
                ["--base-of-packages", rest @ ..] => {
                    options.base = Some(image::BASE_OF_PACKAGES.to_owned());
                    rest
                }
                [unknown, ..] => return Err(format!("unknown option '{unknown}'")),
            }
        }
        if options.targets.is_empty() {
            options.targets.push(Target::host());
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_options_everything_that_is_possible_is_released() {
        let options = Options::parse(&[]).unwrap();
        assert!(!options.is_draft);
        assert_eq!(options.image, ImageDemand::IfPossible);
        assert_eq!(options.targets, [Target::host()]);
    }

    #[test]
    fn targets_are_built_once_each() {
        let arm = ["--target", "aarch64-unknown-linux-gnu"];
        let options = Options::parse(&[&arm[..], &arm[..], &["--image", "--draft"]].concat());
        let options = options.unwrap();
        assert_eq!(options.targets, [Target::named(arm[1]).unwrap()]);
        assert_eq!(options.image, ImageDemand::Needed);
        assert!(options.is_draft);
    }

    #[test]
    fn unknown_options_are_refused() {
        // A release is for old systems, and is never linked with this machine's libraries.
        for unknown in ["--native", "--debug", "--output"] {
            let error = Options::parse(&[unknown]).unwrap_err();
            assert_eq!(error, format!("unknown option '{unknown}'"));
        }
    }
}
