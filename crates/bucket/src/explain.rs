//! Describes failures so that the reader knows what to fix.

use std::error::Error;

use galatea_outbound::OutboundError;

use crate::client::OtherRegion;

/// The maximum length of a quoted server message, in characters.
const MESSAGE_LENGTH_MAX: usize = 500;

/// The cause of a failed request to an object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestFailureCause {
    /// The server's error code; empty if there is none.
    pub(crate) code: String,
    /// The message, from the server or this machine.
    pub(crate) message: String,
    pub(crate) kind: FailedPart,
}

/// The part that needs to be fixed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum FailedPart {
    /// The message already says what to fix.
    Told,
    Region,
    Credentials,
    Permission,
    Bucket,
    Other,
}

impl RequestFailureCause {
    pub(crate) fn of(error: &object_store::Error) -> Self {
        if let Some(message) = found_here(error) {
            return Self { code: String::new(), message, kind: FailedPart::Told };
        }
        let text = error.to_string();
        let code = element(&text, "Code").unwrap_or_default();
        let message = element(&text, "Message").or_else(|| json_message(&text));
        let message = message.unwrap_or_else(|| shorten(&text));
        Self { kind: kind(error, &code, &text), code, message }
    }

    /// Returns a hint to append to Triton's message.
    pub(crate) fn remark(&self) -> &'static str {
        match self.kind {
            FailedPart::Told | FailedPart::Other => "",
            FailedPart::Region => " (region: the bucket is in another one: set AWS_DEFAULT_REGION)",
            FailedPart::Credentials => {
                " (credentials: the server does not accept these, or there are none)"
            }
            FailedPart::Permission => {
                " (permission: these credentials may not list or read here, or are unknown)"
            }
            FailedPart::Bucket => " (bucket: there is none of this name)",
        }
    }
}

/// The local message, if this machine detected the failure rather than the server.
fn found_here(error: &(dyn Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<OutboundError>() || error.is::<OtherRegion>() {
            return Some(error.to_string());
        }
        next = error.source();
    }
    None
}

/// The paths of the services that assign roles to machines.
const ROLES: [&str; 4] = ["/latest/", "/computeMetadata/", "/metadata/identity", "oauth2"];

/// Returns true if the machine was denied a role.
pub(crate) fn is_of_role(error: &object_store::Error) -> bool {
    let text = error.to_string();
    ROLES.iter().any(|path| text.contains(path))
}

fn kind(error: &object_store::Error, code: &str, text: &str) -> FailedPart {
    match code {
        "InvalidAccessKeyId"
        | "SignatureDoesNotMatch"
        | "ExpiredToken"
        | "InvalidToken"
        | "TokenRefreshRequired"
        | "AuthenticationFailed"
        | "InvalidAuthenticationInfo"
        | "NoAuthenticationInformation" => FailedPart::Credentials,
        "AccessDenied"
        | "AllAccessDisabled"
        | "AuthorizationFailure"
        | "AuthorizationPermissionMismatch"
        | "InsufficientAccountPermissions" => FailedPart::Permission,
        "NoSuchBucket" | "ContainerNotFound" => FailedPart::Bucket,
        "PermanentRedirect"
        | "AuthorizationHeaderMalformed"
        | "IllegalLocationConstraintException" => FailedPart::Region,
        _ if ROLES.iter().any(|path| text.contains(path)) => FailedPart::Credentials,
        _ if text.contains("without LOCATION") => FailedPart::Region,
        _ => match error {
            object_store::Error::Unauthenticated { .. } => FailedPart::Credentials,
            object_store::Error::PermissionDenied { .. } => FailedPart::Permission,
            object_store::Error::NotFound { .. } => FailedPart::Bucket,
            _ if text.contains("401 Unauthorized") => FailedPart::Credentials,
            _ if text.contains("403 Forbidden") => FailedPart::Permission,
            _ if text.contains("404 Not Found") => FailedPart::Bucket,
            _ => FailedPart::Other,
        },
    }
}

/// The text of an XML element in the form that Amazon's and Microsoft's servers send.
fn element(text: &str, name: &str) -> Option<String> {
    let (_, after) = text.split_once(&format!("<{name}>"))?;
    let (inside, _) = after.split_once(&format!("</{name}>"))?;
    Some(shorten(inside))
}

fn json_message(text: &str) -> Option<String> {
    let (_, after) = text.split_once("\"message\"")?;
    let inside = after.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
    Some(shorten(inside.split_once('"')?.0))
}

/// Shortens a message to one line of bounded length.
fn shorten(text: &str) -> String {
    let line = text.chars().map(|one| if one.is_control() { ' ' } else { one });
    line.take(MESSAGE_LENGTH_MAX).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: text.to_owned().into() }
    }

    fn check(text: &str, code: &str, message: &str, kind: FailedPart) {
        let expected =
            RequestFailureCause { code: code.to_owned(), message: message.to_owned(), kind };
        assert_eq!(RequestFailureCause::of(&error(text)), expected, "{text}");
    }

    #[test]
    fn answers_of_servers_say_what_to_mend() {
        let xml = |code: &str| {
            format!("403: <Error><Code>{code}</Code>\n<Message>No\nway</Message></Error>")
        };
        check(&xml("InvalidAccessKeyId"), "InvalidAccessKeyId", "No way", FailedPart::Credentials);
        check(&xml("AccessDenied"), "AccessDenied", "No way", FailedPart::Permission);
        check(&xml("NoSuchBucket"), "NoSuchBucket", "No way", FailedPart::Bucket);
        check(
            &xml("AuthorizationHeaderMalformed"),
            "AuthorizationHeaderMalformed",
            "No way",
            FailedPart::Region,
        );
        let json = "404 Not Found: {\"error\": {\"message\": \"gone\"}}";
        check(json, "", "gone", FailedPart::Bucket);
        let role = "PUT http://169.254.169.254/latest/api/token";
        check(role, "", &format!("Generic S3 error: {role}"), FailedPart::Credentials);
        let long = RequestFailureCause::of(&error(&"x".repeat(1 << 20)));
        assert!(long.message.len() <= MESSAGE_LENGTH_MAX && long.kind == FailedPart::Other);
    }

    #[test]
    fn what_this_machine_found_is_told_as_it_is() {
        let name = OutboundError::Name { host: "h".into(), reason: "unknown".into() };
        let region = OtherRegion { region: "r".into() };
        let found: [Box<dyn Error + Send + Sync>; 2] = [Box::new(name), Box::new(region)];
        for source in found {
            let text = source.to_string();
            let cause =
                RequestFailureCause::of(&object_store::Error::Generic { store: "S3", source });
            assert_eq!((cause.message, cause.kind), (text, FailedPart::Told));
        }
    }
}
