//! Opens object stores from an address and credentials.

use std::net::{SocketAddr, TcpStream};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};

use crate::address::{Address, BucketPlace};
use crate::client::BucketClient;
use crate::credentials::{AzureCredential, BucketEnvironment, GcsCredential, S3Credential};

/// The address of the cloud metadata service, from which machines learn about their roles.
const METADATA: ([u8; 4], u16) = ([169, 254, 169, 254], 80);
/// The time limit for connecting to the metadata service, which is on the same machine.
const METADATA_TIME_MAX: Duration = Duration::from_secs(1);

/// The identity of requests without keys.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeylessIdentity {
    /// The role that the cloud assigns to the machine, if any.
    Role,
    /// No identity, for reading public buckets.
    Anonymous,
}

/// Opens an object store without sending a request to it.
///
/// # Errors
///
/// Returns a description of the mistake in the credentials or settings.
pub(crate) fn open(
    url: &str,
    address: &Address,
    around: &BucketEnvironment,
    client: &BucketClient,
    fallback: KeylessIdentity,
) -> Result<Arc<dyn ObjectStore>, String> {
    let has_role = || fallback == KeylessIdentity::Role && has_metadata();
    match &address.place {
        BucketPlace::S3 { endpoint, bucket } => {
            open_s3(url, endpoint.as_deref(), bucket, around, client, has_role)
        }
        BucketPlace::Gcs { bucket } => open_gcs(url, bucket, around, client, has_role),
        BucketPlace::Azure { account, container } => {
            open_azure(url, account, container, around, client)
        }
    }
}

/// The retry settings: six attempts within a minute are enough for a restarting server, and a
/// missing server is still reported soon.
fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(5),
            base: 2.0,
        },
        max_retries: 5,
        retry_timeout: Duration::from_mins(1),
    }
}

fn open_s3(
    url: &str,
    endpoint: Option<&str>,
    bucket: &str,
    around: &BucketEnvironment,
    client: &BucketClient,
    has_role: impl Fn() -> bool,
) -> Result<Arc<dyn ObjectStore>, String> {
    /// The variables that clusters set to assign roles.
    const ROLE_VARIABLES: [&str; 10] = [
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_ROLE_ARN",
        "AWS_ROLE_SESSION_NAME",
        "AWS_ENDPOINT_URL_STS",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        "AWS_METADATA_ENDPOINT",
        "AWS_IMDSV1_FALLBACK",
        "AWS_REQUEST_PAYER",
    ];
    let credential = S3Credential::find(url, around)?;
    let mut builder = AmazonS3Builder::new()
        .with_http_connector(client.clone())
        .with_retry(retries())
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .with_virtual_hosted_style_request(false)
        .with_bucket_name(bucket);
    let named = around.get("AWS_ENDPOINT_URL_S3").or_else(|| around.get("AWS_ENDPOINT_URL"));
    if let Some(endpoint) = endpoint.or(named) {
        builder = builder.with_endpoint(endpoint);
    }
    if !credential.region.is_empty() {
        builder = builder.with_region(&credential.region);
    }
    if credential.has_keys() {
        builder = builder
            .with_access_key_id(&credential.key_id)
            .with_secret_access_key(&credential.secret_key);
        if !credential.session_token.is_empty() {
            builder = builder.with_token(&credential.session_token);
        }
    } else {
        let roles = ROLE_VARIABLES.iter().filter_map(|name| Some((*name, around.get(name)?)));
        let mut is_named = false;
        for (name, value) in roles {
            let key = AmazonS3ConfigKey::from_str(&name.to_ascii_lowercase());
            builder = builder.with_config(key.map_err(|error| error.to_string())?, value);
            is_named |= name.contains("CREDENTIALS")
                || name.contains("WEB_IDENTITY")
                || name.contains("METADATA");
        }
        let is_off = around.get("AWS_EC2_METADATA_DISABLED") == Some("true");
        // Public buckets are read without a signature.
        builder = builder.with_skip_signature(!is_named && (is_off || !has_role()));
    }
    Ok(Arc::new(builder.build().map_err(|error| error.to_string())?))
}

fn open_gcs(
    url: &str,
    bucket: &str,
    around: &BucketEnvironment,
    client: &BucketClient,
    has_role: impl Fn() -> bool,
) -> Result<Arc<dyn ObjectStore>, String> {
    let credential = GcsCredential::find(url, around)?;
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_http_connector(client.clone())
        .with_retry(retries())
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .with_bucket_name(bucket);
    let emulator = around.get("CLOUD_STORAGE_EMULATOR_ENDPOINT");
    if let Some(endpoint) = emulator {
        builder = builder.with_base_url(endpoint.trim_end_matches('/'));
    }
    // As in Triton, the machine's role is used if there is no usable file, and no identity if there
    // is no role.
    if std::fs::metadata(&credential.path).is_ok_and(|found| found.is_file()) {
        builder = builder.with_application_credentials(&credential.path);
    } else if emulator.is_some() || !has_role() {
        builder = builder.with_skip_signature(true);
    }
    Ok(Arc::new(builder.build().map_err(|error| error.to_string())?))
}

fn open_azure(
    url: &str,
    account: &str,
    container: &str,
    around: &BucketEnvironment,
    client: &BucketClient,
) -> Result<Arc<dyn ObjectStore>, String> {
    /// The variables that Microsoft's tools read for their credential chain.
    const CHAIN: [&str; 5] = [
        "AZURE_CLIENT_ID",
        "AZURE_CLIENT_SECRET",
        "AZURE_TENANT_ID",
        "AZURE_AUTHORITY_HOST",
        "AZURE_FEDERATED_TOKEN_FILE",
    ];
    let credential = AzureCredential::find(url, around)?;
    let named = &credential.account;
    let mut builder = MicrosoftAzureBuilder::new()
        .with_http_connector(client.clone())
        .with_retry(retries())
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .with_account(if named.is_empty() { account } else { named })
        .with_container_name(container);
    if let Some(endpoint) = around.get("AZURE_STORAGE_ENDPOINT") {
        builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
    }
    match credential.auth_type.as_str() {
        "managed_identity" if credential.client_id.is_empty() => {}
        "managed_identity" => builder = builder.with_client_id(&credential.client_id),
        "default" => {
            for (name, value) in CHAIN.iter().filter_map(|name| Some((name, around.get(name)?))) {
                let key = AzureConfigKey::from_str(&name.to_ascii_lowercase());
                builder = builder.with_config(key.map_err(|error| error.to_string())?, value);
            }
        }
        _ if credential.key.is_empty() => builder = builder.with_skip_signature(true),
        _ => builder = builder.with_access_key(&credential.key),
    }
    Ok(Arc::new(builder.build().map_err(|error| error.to_string())?))
}

/// Returns true if this machine seems to run in a cloud that may assign it a role.
fn has_metadata() -> bool {
    TcpStream::connect_timeout(&SocketAddr::from(METADATA), METADATA_TIME_MAX).is_ok()
}
