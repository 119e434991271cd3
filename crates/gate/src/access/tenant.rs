//! Callers that keys identify.

use std::fmt;
use std::num::NonZeroU32;

use super::category::ApiCategory;

/// The number of a tenant, which a [`TenantDirectory`] assigns.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TenantNumber(pub NonZeroU32);

/// The tenants of a server.
pub trait TenantDirectory: Send + Sync + fmt::Debug {
    /// Finds the tenant with this key, and checks that it may use the APIs of a category.
    ///
    /// # Errors
    ///
    /// The key is missing or unknown, or doesn't allow the category.
    fn identify(
        &self,
        key: Option<&[u8]>,
        category: ApiCategory,
    ) -> Result<TenantNumber, TenantRefusal>;

    /// Counts an inference request against the limits of a tenant.
    ///
    /// # Errors
    ///
    /// A limit is exceeded, or the tenant no longer exists.
    fn count_request(&self, tenant: TenantNumber) -> Result<(), TenantRefusal>;
}

/// The reason why a caller is refused by its key.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TenantRefusal {
    /// The caller has sent no key.
    MissingKey,
    /// No tenant has the key.
    UnknownKey,
    /// The tenant may not use the APIs of this category.
    ForbiddenApi(ApiCategory),
    /// The tenant has sent too many requests.
    TooManyRequests {
        /// The milliseconds after which a request is admitted, if no other comes before it.
        retry_after_ms: u32,
    },
}

impl fmt::Display for TenantRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingKey => f.write_str(
                "this API requires a key, expecting header 'authorization: Bearer KEY' or \
                 'x-api-key: KEY'",
            ),
            Self::UnknownKey => f.write_str("the key is unknown or has been revoked"),
            Self::ForbiddenApi(category) => write!(f, "the key does not allow API '{category}'"),
            Self::TooManyRequests { retry_after_ms } => write!(
                f,
                "the limit of requests per second is exceeded, retry after {retry_after_ms} ms"
            ),
        }
    }
}

/// Returns the key in a caller's headers: that of `authorization: Bearer KEY`, or `x-api-key`.
pub(super) fn key_of<'h>(header: impl Fn(&str) -> Option<&'h [u8]>) -> Option<&'h [u8]> {
    let bearer = header("authorization").and_then(|value| {
        let (scheme, key) = value.split_at_checked(BEARER.len())?;
        scheme.eq_ignore_ascii_case(BEARER).then_some(key.trim_ascii())
    });
    bearer.or_else(|| header("x-api-key"))
}

const BEARER: &[u8] = b"bearer ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_bearer_token_or_has_its_own_header() {
        let key = |authorization: Option<&'static str>, own: Option<&'static str>| {
            let found = key_of(|name| {
                let value = if name == "authorization" { authorization } else { own };
                value.map(str::as_bytes)
            });
            found.map(|key| String::from_utf8_lossy(key).into_owned())
        };
        assert_eq!(key(Some("Bearer a"), None).as_deref(), Some("a"));
        assert_eq!(key(Some("bearer  a "), Some("b")).as_deref(), Some("a"));
        assert_eq!(key(None, Some("b")).as_deref(), Some("b"));
        assert_eq!(key(Some("Basic a"), Some("b")).as_deref(), Some("b"));
        assert_eq!(key(Some("Bearer"), None), None);
        assert_eq!(key(None, None), None);
    }
}
