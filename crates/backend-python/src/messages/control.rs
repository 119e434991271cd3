//! Models' requests to load, unload and query other models.

use galatea_control::LoadParameters;
use galatea_infer::Status;

use super::Members;
use crate::server::ServerAccess;

/// The prefix of file paths, as in clients' requests.
const FILE: &str = "file:";

/// Performs the operation that a document requests and returns the result.
pub(crate) fn perform(server: &dyn ServerAccess, document: &str) -> Result<String, Status> {
    let members = Members::parse(document)?;
    let name = members.text("name")?;
    match members.text("op")? {
        "load_model" => {
            let mut parameters = LoadParameters::default();
            for (path, content) in members.texts("files")? {
                let content = decode_base64(content)
                    .ok_or_else(|| Status::invalid_argument(format!("file '{path}' is damaged")))?;
                let path = path.strip_prefix(FILE).unwrap_or(path);
                parameters.files.push((path.to_owned(), content));
            }
            let given = members.texts("parameters")?;
            let config = given.iter().find(|(name, _)| *name == "config");
            parameters.config = config.map(|(_, config)| (*config).to_owned());
            server.load_model(name, parameters)?;
            Ok(String::from("{}"))
        }
        "unload_model" => {
            server.unload_model(name, members.flag("unload_dependents"))?;
            Ok(String::from("{}"))
        }
        "is_model_ready" => {
            let version = parse_version(members.text("version").unwrap_or_default())?;
            let is_ready = server.is_model_ready(name, version)?;
            Ok(format!("{{\"ready\":{is_ready}}}"))
        }
        other => Err(Status::internal(format!("a worker asked for '{other}'"))),
    }
}

/// The version number at the start of a string. As in Triton, anything after the digits is ignored.
fn parse_version(text: &str) -> Result<Option<i64>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = |why: &str| {
        Status::invalid_argument(format!(
            "failed to get model version from specified version string '{text}'{why}, version \
             should be an integral value > 0"
        ))
    };
    let number = text.trim_ascii_start();
    let unsigned = number.strip_prefix(['-', '+']).unwrap_or(number);
    let digits = unsigned.bytes().take_while(u8::is_ascii_digit).count();
    let end = number.len() - unsigned.len() + digits;
    match number[..end].parse::<i64>() {
        Ok(version) if version >= 0 => Ok(Some(version)),
        Ok(_) => Err(wrong("")),
        Err(_) => Err(wrong(" (details: stol)")),
    }
}

/// Decodes standard base64 with padding, as Python's library writes it.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte.wrapping_sub(b'A')),
        b'a'..=b'z' => Some(byte.wrapping_sub(b'a').wrapping_add(26)),
        b'0'..=b'9' => Some(byte.wrapping_sub(b'0').wrapping_add(52)),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits = text.trim_end_matches('=').as_bytes();
    let mut bytes = Vec::with_capacity(digits.len());
    for group in digits.chunks(4) {
        let mut bits: u32 = 0;
        for byte in group {
            bits = bits << 6 | u32::from(digit(*byte)?);
        }
        let (shift, count) = match group.len() {
            4 => (8, 3),
            3 => (14, 2),
            2 => (20, 1),
            _ => return None,
        };
        bytes.extend((bits << shift).to_be_bytes().into_iter().take(count));
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use galatea_infer::{InferenceRequest, LogLevel, ResponseSender};
    use galatea_stdx::Lock;

    use super::*;
    use crate::server::{CustomMetricFamily, CustomMetricKind};

    /// Records the loads.
    #[derive(Default)]
    struct RecordingServer {
        loads: Lock<Vec<(String, LoadParameters)>>,
    }

    impl ServerAccess for RecordingServer {
        fn infer(&self, _: InferenceRequest, sender: ResponseSender) {
            drop(sender);
        }

        fn is_decoupled(&self, _: &str, _: Option<i64>) -> Result<bool, Status> {
            Ok(false)
        }

        fn load_model(&self, model: &str, parameters: LoadParameters) -> Result<(), Status> {
            self.loads.lock("record a load").push((model.to_owned(), parameters));
            Ok(())
        }

        fn unload_model(&self, _: &str, _: bool) -> Result<(), Status> {
            Ok(())
        }

        fn is_model_ready(&self, _: &str, _: Option<i64>) -> Result<bool, Status> {
            Ok(true)
        }

        fn metric_family(
            &self,
            _: &str,
            _: &str,
            _: CustomMetricKind,
        ) -> Result<Box<dyn CustomMetricFamily>, Status> {
            Err(Status::unsupported("no metrics"))
        }

        fn log(&self, _: LogLevel, _: &str, _: u32, _: &str) {}
    }

    #[test]
    fn a_load_has_its_configuration_and_files() {
        let server = RecordingServer::default();
        let document = r#"{"op":"load_model","name":"m","files":{"file:1/a":"Zm9v"},
            "parameters":{"config":"{}"}}"#;
        assert_eq!(perform(&server, document).unwrap(), "{}");
        let document = r#"{"op":"load_model","name":"n","files":{},"parameters":{}}"#;
        perform(&server, document).unwrap();
        let loads = server.loads.lock("read the loads");
        let first = LoadParameters {
            config: Some(String::from("{}")),
            files: vec![(String::from("1/a"), b"foo".to_vec())],
        };
        let expected = [(String::from("m"), first), (String::from("n"), LoadParameters::default())];
        assert_eq!(loads[..], expected);
    }

    #[test]
    fn base64_is_decoded() {
        for (text, expected) in
            [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYmFy", "foobar")]
        {
            assert_eq!(decode_base64(text).unwrap(), expected.as_bytes());
        }
        assert_eq!(decode_base64("+/+/").unwrap(), [0xfb, 0xff, 0xbf]);
        assert_eq!(decode_base64("A"), None);
        assert_eq!(decode_base64("Zg$="), None);
    }
}
