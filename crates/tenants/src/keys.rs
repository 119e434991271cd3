//! `galatea keys`: makes, lists and revokes the keys in a file of tenants.
//!
//! The file is replaced in one step, so a running server reads either the old or the new one. The
//! server puts the new one into use within a few seconds.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::document::{TenantEntry, TenantKey, TenantsDocument};
use crate::key::{KeyHash, KeyId, MadeKey};

/// A key to make.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewKey {
    /// The file of tenants, which is created if there is none.
    pub file: PathBuf,
    /// The tenant, which is created if the file lacks it.
    pub tenant: String,
    /// The APIs that the tenant may use, as names with commas between them.
    pub apis: Option<String>,
    /// The tenant's limit of inference requests per second.
    pub requests_per_second: Option<u64>,
}

impl NewKey {
    /// Makes the key and returns its text, which is stored nowhere.
    ///
    /// # Errors
    ///
    /// Returns an error if the file can't be read or written, or an option is invalid.
    pub fn make(&self) -> Result<String, String> {
        let mut document = match fs::metadata(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => TenantsDocument::default(),
            Err(_) | Ok(_) => read(&self.file)?,
        };
        let is_same = |entry: &TenantEntry| entry.name == self.tenant;
        let index = match document.tenants.iter().position(is_same) {
            Some(index) => index,
            None => {
                document.tenants.push(TenantEntry::new(&self.tenant)?);
                document.tenants.len() - 1
            }
        };
        let entry = &mut document.tenants[index];
        if let Some(apis) = &self.apis {
            entry.set_apis(apis)?;
        }
        if let Some(limit) = self.requests_per_second {
            entry.requests_per_second = Some(limit);
        }
        let key = MadeKey::random().map_err(|error| format!("no random bytes: {error}"))?;
        let hash = KeyHash::of_key(key.text.as_bytes());
        entry.keys.push(TenantKey { id: key.id, hash });
        write(&self.file, &document)?;
        Ok(key.text)
    }
}

/// Lists the tenants of a file with the IDs of their keys, one line for each key.
///
/// # Errors
///
/// Returns an error if the file can't be read.
pub fn list(file: &Path) -> Result<String, String> {
    let document = read(file)?;
    let mut lines = vec![String::from("KEY               REQUESTS/S  TENANT  APIS")];
    for tenant in &document.tenants {
        let limit = tenant.requests_per_second.map_or("-".to_owned(), |limit| limit.to_string());
        let apis = tenant.apis().collect::<Vec<_>>().join(",");
        let ids = tenant.keys.iter().map(|key| key.id.as_str());
        // A tenant without keys has a line too.
        let ids = ids.chain(tenant.keys.is_empty().then_some("-"));
        lines.extend(ids.map(|id| format!("{id:<16}  {limit:>10}  {}  {apis}", tenant.name)));
    }
    Ok(lines.join("\n"))
}

/// Removes the key with this ID. Its tenant stays.
///
/// # Errors
///
/// Returns an error if the file can't be read or written, or lacks the key.
pub fn revoke(file: &Path, id: &str) -> Result<String, String> {
    let mut document = read(file)?;
    let id = KeyId::new(id).ok_or_else(|| {
        format!("'{id}' is no ID of a key: an ID has 16 lower-case hexadecimal digits")
    })?;
    let owner =
        document.tenants.iter_mut().find(|tenant| tenant.keys.iter().any(|key| key.id == id));
    let owner =
        owner.ok_or_else(|| format!("'{}' has no key '{}'", file.display(), id.as_str()))?;
    owner.keys.retain(|key| key.id != id);
    let text = format!("revoked {} of {}", id.as_str(), owner.name);
    write(file, &document)?;
    Ok(text)
}

fn read(file: &Path) -> Result<TenantsDocument, String> {
    let about = |reason: String| format!("'{}': {reason}", file.display());
    let text = fs::read(file).map_err(|error| about(error.to_string()))?;
    TenantsDocument::parse(&text).map_err(about)
}

/// Replaces the file, with the permissions of the old one. A new file can be read by its owner only.
fn write(file: &Path, document: &TenantsDocument) -> Result<(), String> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let temporary = file.with_file_name(format!(".{name}.{}", std::process::id()));
    let mode = fs::metadata(file).map_or(0o600, |found| found.mode() & 0o777);
    let written = write_new(&temporary, &document.to_json(), mode)
        .and_then(|()| fs::rename(&temporary, file));
    written.map_err(|error| {
        // Nothing is left if the file was never created.
        let _ = fs::remove_file(&temporary);
        format!("'{}' can't be written: {error}", file.display())
    })
}

fn write_new(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_made_listed_and_revoked() {
        let folder = std::env::temp_dir().join(format!("galatea-keys-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("tenants.json");
        let new = |tenant: &str, apis: Option<&str>, limit| NewKey {
            file: file.clone(),
            tenant: tenant.to_owned(),
            apis: apis.map(str::to_owned),
            requests_per_second: limit,
        };
        let first = new("a", None, None).make().unwrap();
        let second = new("a", Some("inference,trace"), Some(9)).make().unwrap();
        new("b", None, None).make().unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(!text.contains(&first) && !text.contains(&second));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let id = |key: &str| key[3..19].to_owned();
        let listed = list(&file).unwrap();
        for key in [&first, &second] {
            let line = format!("{}           9  a  inference,trace", id(key));
            assert!(listed.contains(&line), "{listed}");
        }
        assert_eq!(revoke(&file, &id(&first)).unwrap(), format!("revoked {} of a", id(&first)));
        assert!(revoke(&file, &id(&first)).unwrap_err().contains("has no key"));
        assert!(revoke(&file, "x").unwrap_err().contains("16 lower-case hexadecimal digits"));
        assert!(!list(&file).unwrap().contains(&id(&first)));
        assert!(list(&file).unwrap().contains(&id(&second)));
        assert!(new("a", Some("infer"), None).make().unwrap_err().contains("'infer' is no API"));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "no temporary file is left");
        fs::write(&file, "x").unwrap();
        assert!(new("a", None, None).make().unwrap_err().contains("it is not JSON"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
