//! `galatea keys`: makes, lists and revokes keys of tenants.

use std::path::PathBuf;

use galatea_tenants::{NewKey, list, revoke};
use galatea_tools::Arguments;
use galatea_tools::commands;
use galatea_tools::console::ReportFormat;
use serde_json::json;

/// A command about keys.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum KeysCommand {
    /// Make a key.
    New(NewKey),
    /// List the keys of a file.
    List(PathBuf),
    /// Remove the key with an ID from a file.
    Revoke(PathBuf, String),
}

impl KeysCommand {
    /// Returns true if the command with this name is about keys.
    pub(crate) fn has(name: &str) -> bool {
        [commands::NEW_KEY.name, commands::LIST_KEYS.name, commands::REVOKE_KEY.name]
            .contains(&name)
    }

    /// Reads the arguments of the command with this name.
    pub(crate) fn new(name: &str, given: &Arguments) -> Result<Self, String> {
        match given.operands.as_slice() {
            [file, tenant] if name == commands::NEW_KEY.name => {
                let limit = given.option("requests-per-second").map(|number| {
                    let limit = number.parse().ok().filter(|limit| *limit > 0);
                    limit.ok_or(format!("'{number}' is no positive number of requests a second"))
                });
                Ok(Self::New(NewKey {
                    file: file.into(),
                    tenant: tenant.clone(),
                    apis: given.option("apis").map(str::to_owned),
                    requests_per_second: limit.transpose()?,
                }))
            }
            [file] if name == commands::LIST_KEYS.name => Ok(Self::List(file.into())),
            [file, id] if name == commands::REVOKE_KEY.name => {
                Ok(Self::Revoke(file.into(), id.clone()))
            }
            _ if name == commands::NEW_KEY.name => {
                Err(String::from("one file and the name of one tenant are needed"))
            }
            _ if name == commands::LIST_KEYS.name => Err(String::from("one file is needed")),
            _ => Err(String::from("one file and the ID of one key are needed")),
        }
    }

    /// Runs the command and returns its text.
    pub(crate) fn run(&self, format: ReportFormat) -> Result<String, String> {
        match self {
            Self::New(new) => {
                let key = new.make()?;
                Ok(if format == ReportFormat::Json {
                    json!({ "key": key }).to_string()
                } else {
                    key
                })
            }
            Self::List(file) => list(file),
            Self::Revoke(file, id) => revoke(file, id),
        }
    }
}
