//! The choice of the runtime that executes a model: TensorFlow's library, or another runtime that
//! reads its graphs, which is `OpenVINO`.

use galatea_infer::Status;

/// The parameter with which a configuration chooses the runtime. Triton has no such parameter.
pub(crate) const RUNTIME: &str = "RUNTIME";

/// The choice in a configuration.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum RuntimeParameter {
    /// No choice: TensorFlow is used if it is installed, so that responses are the same to the
    /// last bit as without `OpenVINO`.
    Unstated,
    TensorFlow,
    OpenVino,
    /// `OpenVINO` is used for the models that it can execute, because it needs less memory.
    Auto,
}

/// A runtime.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Runtime {
    TensorFlow,
    OpenVino,
}

/// The runtimes whose libraries are installed; for the others, the errors that say how to install
/// them.
pub(crate) struct InstalledRuntimes {
    pub(crate) tensorflow: Result<(), Status>,
    pub(crate) openvino: Result<(), Status>,
}

/// A runtime to try, with the reason for the log.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) runtime: Runtime,
    pub(crate) reason: &'static str,
}

impl RuntimeParameter {
    /// The choice that a parameter specifies; empty if it specifies none.
    pub(crate) fn parse(text: &str, model: &str) -> Result<Self, Status> {
        match text.to_ascii_lowercase().as_str() {
            "" => Ok(Self::Unstated),
            "tensorflow" => Ok(Self::TensorFlow),
            "openvino" => Ok(Self::OpenVino),
            "auto" => Ok(Self::Auto),
            _ => Err(Status::invalid_argument(format!(
                "parameter '{RUNTIME}' must be 'tensorflow', 'openvino' or 'auto' for TensorFlow \
                 model '{model}', got '{text}'"
            ))),
        }
    }

    /// The runtimes to try, in this order.
    pub(crate) fn candidates(self, installed: &InstalledRuntimes) -> Vec<Candidate> {
        let (tensorflow, openvino) = (installed.tensorflow.is_ok(), installed.openvino.is_ok());
        let by_tensorflow = |reason| Candidate { runtime: Runtime::TensorFlow, reason };
        let by_openvino = |reason| Candidate { runtime: Runtime::OpenVino, reason };
        let wanted = "the parameter RUNTIME says so";
        match self {
            Self::TensorFlow if tensorflow => vec![by_tensorflow(wanted)],
            Self::OpenVino if openvino => vec![by_openvino(wanted)],
            Self::TensorFlow | Self::OpenVino => Vec::new(),
            Self::Unstated if tensorflow => vec![by_tensorflow("it is installed")],
            Self::Auto if tensorflow && openvino => {
                vec![by_openvino("it has all operators"), by_tensorflow("OpenVINO can't")]
            }
            Self::Auto if tensorflow => vec![by_tensorflow("OpenVINO is not installed")],
            Self::Unstated | Self::Auto if openvino => {
                vec![by_openvino("TensorFlow is not installed")]
            }
            Self::Unstated | Self::Auto => Vec::new(),
        }
    }

    /// The error for a model that no candidate has loaded. `failure` is `OpenVINO`'s error.
    pub(crate) fn refusal(
        self,
        model: &str,
        installed: InstalledRuntimes,
        failure: Option<&Status>,
    ) -> Status {
        let failure =
            failure.map(|one| format!("OpenVINO can't execute model '{model}': {}", one.message()));
        let missing = match self {
            Self::OpenVino => installed.openvino,
            Self::TensorFlow | Self::Unstated | Self::Auto => installed.tensorflow,
        };
        match (missing.err(), failure) {
            (Some(missing), Some(failure)) => missing.prefixed(format!("{failure}. ")),
            (Some(missing), None) => missing,
            (None, failure) => Status::unsupported(failure.unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installed(tensorflow: bool, openvino: bool) -> InstalledRuntimes {
        let state = |is_there: bool, name: &str| {
            if is_there { Ok(()) } else { Err(Status::not_found(format!("install {name}"))) }
        };
        InstalledRuntimes {
            tensorflow: state(tensorflow, "TensorFlow"),
            openvino: state(openvino, "OpenVINO"),
        }
    }

    #[test]
    fn the_parameter_is_read() {
        let read = |text: &str| RuntimeParameter::parse(text, "m");
        assert_eq!(read(""), Ok(RuntimeParameter::Unstated));
        assert_eq!(read("TensorFlow"), Ok(RuntimeParameter::TensorFlow));
        assert_eq!(read("openvino"), Ok(RuntimeParameter::OpenVino));
        assert_eq!(read("AUTO"), Ok(RuntimeParameter::Auto));
        let text = read("onnx").unwrap_err();
        assert!(text.message().starts_with("parameter 'RUNTIME' must be"), "{text:?}");
    }

    #[test]
    fn parameter_and_installed_libraries_choose() {
        use Runtime::{OpenVino, TensorFlow};
        let cases: [(RuntimeParameter, [&[Runtime]; 4]); 4] = [
            // Both, only TensorFlow, only OpenVINO, none.
            (RuntimeParameter::Unstated, [&[TensorFlow], &[TensorFlow], &[OpenVino], &[]]),
            (RuntimeParameter::TensorFlow, [&[TensorFlow], &[TensorFlow], &[], &[]]),
            (RuntimeParameter::OpenVino, [&[OpenVino], &[], &[OpenVino], &[]]),
            (RuntimeParameter::Auto, [&[OpenVino, TensorFlow], &[TensorFlow], &[OpenVino], &[]]),
        ];
        for (parameter, expected) in cases {
            let libraries = [(true, true), (true, false), (false, true), (false, false)];
            for ((tensorflow, openvino), expected) in libraries.into_iter().zip(expected) {
                let found = parameter.candidates(&installed(tensorflow, openvino));
                let found: Vec<Runtime> = found.iter().map(|one| one.runtime).collect();
                assert_eq!(found, expected, "{parameter:?} {tensorflow} {openvino}");
            }
        }
    }

    #[test]
    fn the_error_says_what_is_missing() {
        let failure = Status::unsupported("no Foo");
        let refused = |parameter: RuntimeParameter, tensorflow, openvino, failure| {
            parameter.refusal("m", installed(tensorflow, openvino), failure).message().to_owned()
        };
        assert_eq!(refused(RuntimeParameter::Unstated, false, false, None), "install TensorFlow");
        assert_eq!(refused(RuntimeParameter::TensorFlow, false, true, None), "install TensorFlow");
        assert_eq!(refused(RuntimeParameter::OpenVino, true, false, None), "install OpenVINO");
        for parameter in [RuntimeParameter::Unstated, RuntimeParameter::Auto] {
            assert_eq!(
                refused(parameter, false, true, Some(&failure)),
                "OpenVINO can't execute model 'm': no Foo. install TensorFlow"
            );
        }
        assert_eq!(
            refused(RuntimeParameter::OpenVino, true, true, Some(&failure)),
            "OpenVINO can't execute model 'm': no Foo"
        );
    }
}
