//! Finds the credentials for reading a repository, as Triton does.
//!
//! The file specified by `TRITON_CLOUD_CREDENTIAL_PATH` maps address prefixes to credentials, and
//! the longest matching prefix wins. Without that file, credentials come from environment
//! variables.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

/// The environment variables, by name, and other relevant facts about the machine.
#[derive(Clone, Default)]
pub struct BucketEnvironment {
    /// The environment variables. Only those listed in [`Self::VARIABLES`] are used.
    pub variables: BTreeMap<String, String>,
    /// The user's home directory.
    pub home: Option<PathBuf>,
    /// The directory for copies, unless a variable specifies another.
    pub temporary_folder: PathBuf,
}

/// A `Debug` form that omits the values, which may be secrets.
impl fmt::Debug for BucketEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

impl BucketEnvironment {
    /// The names of the variables that are used.
    pub const VARIABLES: [&str; 39] = [
        "TRITON_CLOUD_CREDENTIAL_PATH",
        "TRITON_AWS_MOUNT_DIRECTORY",
        "TRITON_GCS_MOUNT_DIRECTORY",
        "TRITON_AZURE_MOUNT_DIRECTORY",
        "SSL_CERT_FILE",
        "AWS_CA_BUNDLE",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_DEFAULT_REGION",
        "AWS_REGION",
        "AWS_PROFILE",
        "AWS_CONFIG_FILE",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_ENDPOINT_URL_STS",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_ROLE_ARN",
        "AWS_ROLE_SESSION_NAME",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        "AWS_METADATA_ENDPOINT",
        "AWS_IMDSV1_FALLBACK",
        "AWS_REQUEST_PAYER",
        "AWS_EC2_METADATA_DISABLED",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "CLOUD_STORAGE_EMULATOR_ENDPOINT",
        "AZURE_STORAGE_ACCOUNT",
        "AZURE_STORAGE_KEY",
        "AZURE_STORAGE_AUTH_TYPE",
        "AZURE_STORAGE_CLIENT_ID",
        "AZURE_STORAGE_ENDPOINT",
        "AZURE_CLIENT_ID",
        "AZURE_CLIENT_SECRET",
        "AZURE_TENANT_ID",
        "AZURE_AUTHORITY_HOST",
        "AZURE_FEDERATED_TOKEN_FILE",
    ];

    /// The value of a variable, if it is set and not empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    fn text(&self, name: &str) -> String {
        self.get(name).unwrap_or_default().to_owned()
    }
}

/// Credentials for Amazon's protocol; unknown fields are empty.
#[derive(Clone, Default)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct S3Credential {
    pub(crate) key_id: String,
    pub(crate) secret_key: String,
    pub(crate) session_token: String,
    pub(crate) region: String,
    pub(crate) profile: String,
}

/// Credentials for Microsoft's cloud.
#[derive(Clone, Default)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct AzureCredential {
    pub(crate) account: String,
    pub(crate) key: String,
    pub(crate) auth_type: String,
    pub(crate) client_id: String,
}

/// Credentials for Google's cloud.
#[derive(Clone, Default)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct GcsCredential {
    /// The path of a JSON file.
    pub(crate) path: String,
}

impl S3Credential {
    pub(crate) fn find(url: &str, around: &BucketEnvironment) -> Result<Self, String> {
        let mut found = match entry("s3", url, around)? {
            Some(entry) => Self {
                key_id: field(&entry, "key_id"),
                secret_key: field(&entry, "secret_key"),
                session_token: field(&entry, "session_token"),
                region: field(&entry, "region"),
                profile: field(&entry, "profile"),
            },
            None => Self {
                key_id: around.text("AWS_ACCESS_KEY_ID"),
                secret_key: around.text("AWS_SECRET_ACCESS_KEY"),
                session_token: around.text("AWS_SESSION_TOKEN"),
                region: around.text("AWS_DEFAULT_REGION"),
                profile: around.text("AWS_PROFILE"),
            },
        };
        if !found.has_keys() {
            found.read_profile(around)?;
        }
        if found.region.is_empty() {
            found.region = around.text("AWS_REGION");
        }
        Ok(found)
    }

    pub(crate) fn has_keys(&self) -> bool {
        !self.key_id.is_empty() && !self.secret_key.is_empty()
    }

    /// Reads the keys and region from the files that Amazon's tools maintain. A named profile must
    /// exist; `default` need not.
    fn read_profile(&mut self, around: &BucketEnvironment) -> Result<(), String> {
        let name = if self.profile.is_empty() { "default" } else { &self.profile };
        let file = |variable: &str, inside: &str| match around.get(variable) {
            Some(path) => Some(PathBuf::from(path)),
            None => around.home.as_ref().map(|home| home.join(".aws").join(inside)),
        };
        let mut values = BTreeMap::new();
        for (variable, inside) in
            [("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials")]
        {
            let text = file(variable, inside).and_then(|path| std::fs::read_to_string(path).ok());
            values.extend(profile(&text.unwrap_or_default(), name));
        }
        if values.is_empty() && !self.profile.is_empty() {
            return Err(format!("there is no profile '{name}' in the files of AWS"));
        }
        let mut take = |key: &str, field: &mut String| {
            if let Some(value) = values.remove(key).filter(|_| field.is_empty()) {
                *field = value;
            }
        };
        take("aws_access_key_id", &mut self.key_id);
        take("aws_secret_access_key", &mut self.secret_key);
        take("aws_session_token", &mut self.session_token);
        take("region", &mut self.region);
        Ok(())
    }
}

impl AzureCredential {
    pub(crate) fn find(url: &str, around: &BucketEnvironment) -> Result<Self, String> {
        Ok(match entry("as", url, around)? {
            Some(entry) => Self {
                account: field(&entry, "account_str"),
                key: field(&entry, "account_key"),
                auth_type: field(&entry, "auth_type"),
                client_id: field(&entry, "client_id"),
            },
            None => Self {
                account: around.text("AZURE_STORAGE_ACCOUNT"),
                key: around.text("AZURE_STORAGE_KEY"),
                auth_type: around.text("AZURE_STORAGE_AUTH_TYPE"),
                client_id: around.text("AZURE_STORAGE_CLIENT_ID"),
            },
        })
    }
}

impl GcsCredential {
    pub(crate) fn find(url: &str, around: &BucketEnvironment) -> Result<Self, String> {
        Ok(match entry("gs", url, around)? {
            Some(Value::String(path)) => Self { path },
            Some(_) => Self::default(),
            None => Self { path: around.text("GOOGLE_APPLICATION_CREDENTIALS") },
        })
    }
}

/// The credential file's entry for an address; `None` if there is no such file.
fn entry(cloud: &str, url: &str, around: &BucketEnvironment) -> Result<Option<Value>, String> {
    let Some(path) = around.get("TRITON_CLOUD_CREDENTIAL_PATH") else { return Ok(None) };
    let text = std::fs::read_to_string(Path::new(path))
        .map_err(|error| format!("failed to open text file for read {path}: {error}"))?;
    longest(&text, cloud, url)
        .map_err(|reason| format!("credential file '{path}': {reason}"))?
        .map(Some)
        .ok_or_else(|| format!("Cannot match credential for path  {url}"))
}

/// The entry whose name is the longest prefix of the address.
fn longest(text: &str, cloud: &str, url: &str) -> Result<Option<Value>, String> {
    // Report only the position, because the text may be a secret.
    let file: Map<String, Value> = serde_json::from_str(text).map_err(|error| {
        format!("not a JSON object, line {} column {}", error.line(), error.column())
    })?;
    let entries = match file.get(cloud) {
        None => return Ok(None),
        Some(entries) => entries.as_object().ok_or(format!("'{cloud}' is not an object"))?,
    };
    let matching = entries.iter().filter(|(name, _)| url.starts_with(name.as_str()));
    Ok(matching.max_by_key(|(name, _)| name.len()).map(|(_, entry)| entry.clone()))
}

fn field(entry: &Value, name: &str) -> String {
    entry.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The values of a profile in an AWS configuration file.
fn profile(text: &str, name: &str) -> BTreeMap<String, String> {
    let mut is_inside = false;
    let mut values = BTreeMap::new();
    for line in text.lines().map(str::trim) {
        if let Some(title) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let title = title.trim();
            is_inside = title.strip_prefix("profile ").unwrap_or(title).trim() == name;
        } else if let Some((key, value)) = line.split_once('=').filter(|_| is_inside) {
            values.insert(key.trim().to_owned(), value.trim().to_owned());
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(variables: &[(&str, &str)]) -> BucketEnvironment {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        BucketEnvironment {
            variables: variables.iter().map(pair).collect(),
            ..BucketEnvironment::default()
        }
    }

    fn scratch(name: &str, text: &str) -> String {
        let file = format!("galatea-bucket-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(file);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    #[test]
    fn variables_are_used_without_a_file() {
        let around = around(&[
            ("AWS_ACCESS_KEY_ID", "id"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_SESSION_TOKEN", ""),
            ("AWS_DEFAULT_REGION", "eu-west-1"),
            ("AZURE_STORAGE_KEY", "k"),
            ("GOOGLE_APPLICATION_CREDENTIALS", "/g.json"),
        ]);
        let s3 = S3Credential::find("s3://b", &around).unwrap();
        assert_eq!(
            (s3.key_id.as_str(), s3.region.as_str(), s3.session_token.as_str()),
            ("id", "eu-west-1", "")
        );
        assert_eq!(AzureCredential::find("as://a/c", &around).unwrap().key, "k");
        assert_eq!(GcsCredential::find("gs://b", &around).unwrap().path, "/g.json");
    }

    #[test]
    fn the_longest_beginning_of_the_address_counts() {
        let text = r#"{"s3": {"": {"key_id": "any", "secret_key": "s"},
            "s3://b": {"key_id": "b", "secret_key": "s"},
            "s3://b/deep": {"key_id": "deep", "secret_key": "s", "region": "r"}},
            "gs": {"gs://only": "/path"}}"#;
        let path = scratch("longest", text);
        let around = around(&[("TRITON_CLOUD_CREDENTIAL_PATH", &path), ("AWS_ACCESS_KEY_ID", "x")]);
        let key = |url: &str| S3Credential::find(url, &around).unwrap().key_id;
        assert_eq!(
            (key("s3://a"), key("s3://b/x"), key("s3://b/deep/er")),
            ("any".into(), "b".into(), "deep".into())
        );
        assert_eq!(GcsCredential::find("gs://only/x", &around).unwrap().path, "/path");
        let missing = GcsCredential::find("gs://other", &around).unwrap_err();
        assert_eq!(missing, "Cannot match credential for path  gs://other");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_broken_file_is_told_without_its_secrets() {
        for (name, text) in [("a", "{\"s3\": SECRET"), ("b", "[]"), ("c", "{\"s3\": \"SECRET\"}")] {
            let path = scratch(name, text);
            let around = around(&[("TRITON_CLOUD_CREDENTIAL_PATH", &path)]);
            let error = S3Credential::find("s3://b", &around).unwrap_err();
            assert!(error.contains(&path) && !error.contains("SECRET"), "{error}");
            std::fs::remove_file(path).unwrap();
        }
        let around = around(&[("TRITON_CLOUD_CREDENTIAL_PATH", "/nowhere")]);
        let error = S3Credential::find("s3://b", &around).unwrap_err();
        assert!(error.starts_with("failed to open text file for read /nowhere"), "{error}");
    }

    #[test]
    fn profiles_are_read_from_both_files() {
        let config = scratch("config", "[default]\nregion = us-west-2\n[profile p]\nregion=eu-1\n");
        let keys = "[default]\naws_access_key_id = d\naws_secret_access_key = s\n\
                    [p]\naws_access_key_id=p\naws_secret_access_key=t\naws_session_token=u\n";
        let credentials = scratch("credentials", keys);
        let files =
            [("AWS_CONFIG_FILE", config.as_str()), ("AWS_SHARED_CREDENTIALS_FILE", &credentials)];
        let find = |profile: &str| {
            let named = [files[0], files[1], ("AWS_PROFILE", profile)];
            S3Credential::find("s3://b", &around(&named))
        };
        let found = find("").unwrap();
        assert_eq!((found.key_id.as_str(), found.region.as_str()), ("d", "us-west-2"));
        let found = find("p").unwrap();
        assert_eq!(
            (found.key_id.as_str(), found.session_token.as_str(), found.region.as_str()),
            ("p", "u", "eu-1")
        );
        assert_eq!(find("q").unwrap_err(), "there is no profile 'q' in the files of AWS");
        assert!(!S3Credential::find("s3://b", &around(&[])).unwrap().has_keys());
        [config, credentials].iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }
}
