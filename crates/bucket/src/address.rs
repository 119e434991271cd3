//! Addresses of repositories in object stores, in Triton's forms.
//!
//! ```text
//! s3://BUCKET/PATH                         a bucket of Amazon
//! s3://HOST:PORT/BUCKET/PATH of another server, over HTTP
//! s3://https://HOST:PORT/BUCKET/PATH       the same over HTTPS (or http://)
//! gs://BUCKET/PATH
//! as://ACCOUNT/CONTAINER/PATH              ACCOUNT may be ACCOUNT.blob.core.windows.net
//! ```

/// The address of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) place: BucketPlace,
    /// The folder in the bucket; empty if the repository is the whole bucket.
    pub(crate) folder: String,
}

/// A bucket or its equivalent in another cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BucketPlace {
    /// A bucket accessed through Amazon's protocol. Without an endpoint, it is at Amazon.
    S3 { endpoint: Option<String>, bucket: String },
    /// A bucket accessed through Google's protocol.
    Gcs { bucket: String },
    /// A container accessed through Microsoft's protocol.
    Azure { account: String, container: String },
}

const AZURE_HOST: &str = ".blob.core.windows.net";

impl Address {
    /// Parses an address.
    ///
    /// # Errors
    ///
    /// Returns a description of the mistake, in Triton's words if Triton has any.
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        if let Some(rest) = url.strip_prefix("s3://") {
            return Self::s3(url, rest);
        }
        if let Some(rest) = url.strip_prefix("gs://") {
            let (bucket, folder) = split(rest);
            let bucket = bucket_name(url, bucket)?;
            return Ok(Self { place: BucketPlace::Gcs { bucket }, folder: clean(folder) });
        }
        let invalid = || format!("Invalid azure storage path: {url}");
        let rest = url.strip_prefix("as://").ok_or_else(invalid)?;
        // As in Triton, everything after a question mark is ignored.
        let rest = rest.split_once('?').map_or(rest, |(path, _)| path);
        let (host, rest) = split(rest);
        let (container, folder) = split(rest);
        if host.is_empty() || container.is_empty() {
            return Err(invalid());
        }
        let account = host.strip_suffix(AZURE_HOST).unwrap_or(host).to_owned();
        let place = BucketPlace::Azure { account, container: container.to_owned() };
        Ok(Self { place, folder: clean(folder) })
    }

    fn s3(url: &str, rest: &str) -> Result<Self, String> {
        let protocols = ["https://", "http://"];
        let protocol = protocols.into_iter().find(|protocol| rest.starts_with(protocol));
        let rest = protocol.and_then(|protocol| rest.strip_prefix(protocol)).unwrap_or(rest);
        let cleaned = clean(rest);
        if cleaned.is_empty() {
            return Err(format!("Invalid bucket name: '{rest}'"));
        }
        let (first, after) = split(&cleaned);
        let is_endpoint = first.split_once(':').is_some_and(|(host, port)| {
            let is_host = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
            !host.is_empty() && host.bytes().all(is_host) && port.parse::<u16>().is_ok()
        });
        if !is_endpoint && (protocol.is_some() || first.contains(':')) {
            return Err(format!("'{url}' needs a host and a port before the bucket"));
        }
        let (endpoint, (bucket, folder)) = if is_endpoint {
            let protocol = protocol.unwrap_or("http://");
            (Some(format!("{protocol}{first}")), split(after))
        } else {
            (None, (first, after))
        };
        let bucket = bucket_name(url, bucket)?;
        Ok(Self { place: BucketPlace::S3 { endpoint, bucket }, folder: folder.to_owned() })
    }
}

fn bucket_name(url: &str, name: &str) -> Result<String, String> {
    let is_in_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if name.is_empty() {
        return Err(format!("No bucket name found in path: {url}"));
    }
    if !name.bytes().all(is_in_name) {
        return Err(format!("Invalid bucket name: '{}'", name.escape_debug()));
    }
    Ok(name.to_owned())
}

fn split(text: &str) -> (&str, &str) {
    text.split_once('/').unwrap_or((text, ""))
}

/// Removes leading, trailing and repeated slashes from a path.
fn clean(path: &str) -> String {
    path.split('/').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s3(endpoint: Option<&str>, bucket: &str, folder: &str) -> Result<Address, String> {
        let endpoint = endpoint.map(str::to_owned);
        let place = BucketPlace::S3 { endpoint, bucket: bucket.to_owned() };
        Ok(Address { place, folder: folder.to_owned() })
    }

    #[test]
    fn addresses_have_the_forms_of_triton() {
        let parse = Address::parse;
        assert_eq!(parse("s3://b"), s3(None, "b", ""));
        assert_eq!(parse("s3://b-1.x/p/q/"), s3(None, "b-1.x", "p/q"));
        assert_eq!(parse("s3://b//p///q//"), s3(None, "b", "p/q"));
        assert_eq!(parse("s3://h.x:90/b/p"), s3(Some("http://h.x:90"), "b", "p"));
        assert_eq!(parse("s3://http://h:90/b"), s3(Some("http://h:90"), "b", ""));
        assert_eq!(parse("s3://https://h:443//b/p"), s3(Some("https://h:443"), "b", "p"));
        let gcs = BucketPlace::Gcs { bucket: "b".into() };
        assert_eq!(parse("gs://b/p/"), Ok(Address { place: gcs, folder: "p".into() }));
        let azure = BucketPlace::Azure { account: "a".into(), container: "c".into() };
        for url in ["as://a/c/p", "as://a.blob.core.windows.net/c/p/?sv=1"] {
            assert_eq!(
                parse(url),
                Ok(Address { place: azure.clone(), folder: "p".into() }),
                "{url}"
            );
        }
    }

    #[test]
    fn other_addresses_are_refused() {
        let refused = |url: &str| Address::parse(url).unwrap_err();
        assert_eq!(refused("s3://"), "Invalid bucket name: ''");
        assert_eq!(refused("s3://h:9"), "No bucket name found in path: s3://h:9");
        assert_eq!(refused("s3://a b/x"), "Invalid bucket name: 'a b'");
        let port = "'s3://https://h/b' needs a host and a port before the bucket";
        assert_eq!(refused("s3://https://h/b"), port);
        assert!(refused("s3://h:99999/b").contains("port"));
        assert!(refused("s3://user@h:9/b").contains("port"));
        assert_eq!(refused("gs:///x"), "No bucket name found in path: gs:///x");
        assert_eq!(refused("as://a"), "Invalid azure storage path: as://a");
    }
}
