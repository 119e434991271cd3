//! Differences from Triton that affect the models and flags of a check.
//!
//! Each entry is a row of docs/differences.md that an operator can act on, with the condition under
//! which it matters. Rows that only concern clients or mistakes are left to that page.

use std::collections::BTreeMap;

use galatea_config::{
    InstanceKind, ModelSpec, NonTritonParameter, OWN_PARAMETERS, SchedulingChoice,
};

use crate::flags::Settings;
use crate::memory::MemoryLimit;

/// A difference and the condition under which it matters.
struct Difference {
    /// Words from the difference's row in docs/differences.md.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test looks for the row"))]
    row: &'static str,
    /// The text for the operator.
    text: &'static str,
    /// The condition under which it matters.
    matters: Condition,
}

/// The input on which a difference depends.
enum Condition {
    /// The difference depends on the flags.
    Settings(fn(&Settings) -> bool),
    /// The difference depends on a model.
    Model(fn(&ModelSpec) -> bool),
}

use Condition::{Model, Settings as Flags};

const DIFFERENCES: [Difference; 15] = [
    Difference {
        row: "| several instances of one ONNX model on the CPU |",
        text: "instances of one ONNX model share a session per processor, whose runs overlap; in \
               Triton each has a session of its own",
        matters: Model(|spec| {
            let groups = spec.instance_groups.iter();
            let on_cpu = groups.filter(|group| group.kind != InstanceKind::Gpu);
            spec.backend == ONNXRUNTIME && on_cpu.map(|group| group.count).sum::<u32>() > 1
        }),
    },
    Difference {
        row: "| threads of ONNX models that do not set a number |",
        text: "ONNX models without intra_op_thread_count share one pool of threads, which sleep \
               when idle; in Triton each instance has a pool as large as the machine",
        matters: Model(|spec| {
            spec.backend == ONNXRUNTIME && !spec.parameters.contains_key("intra_op_thread_count")
        }),
    },
    Difference {
        row: "| the backends `identity` and `onnxruntime`, the cache `local` |",
        text: "the backend onnxruntime is built in: a library of it in the directory of backends \
               is not used",
        matters: Model(|spec| spec.backend == ONNXRUNTIME),
    },
    Difference {
        row: "| a batch of fewer than `max_batch_size` rows for a model of `openvino` |",
        text: "batches of any size are executed as they are; Triton's backend openvino refuses or \
               pads those with fewer than max_batch_size rows",
        matters: Model(|spec| spec.backend == OPENVINO && spec.max_batch_size > 1),
    },
    Difference {
        row: "| several instances of a model of `openvino` without `NUM_STREAMS`",
        text: "instances of an OpenVINO model have a stream each; in Triton they wait for each \
               other, unless NUM_STREAMS is given",
        matters: Model(|spec| {
            let instances = spec.instance_groups.iter().map(|group| group.count).sum::<u32>();
            let given = ["NUM_STREAMS", "PERFORMANCE_HINT"];
            spec.backend == OPENVINO
                && instances > 1
                && !given.iter().any(|key| spec.parameters.contains_key(*key))
        }),
    },
    Difference {
        row: "| the backend `tensorflow` |",
        text: "the backend tensorflow is built in, on CPUs, with the library of an installed \
               package; Triton has it up to release 25.02",
        matters: Model(|spec| spec.backend == TENSORFLOW),
    },
    Difference {
        row: "| a Python model whose process ends |",
        text: "a process of a Python model that ends is started anew; in Triton the model stays \
               unhealthy. --backend-config=python,use-library=true takes Triton's library instead",
        matters: Model(|spec| spec.backend == PYTHON),
    },
    Difference {
        row: "| the backends `identity` and `onnxruntime`, the cache `local` |",
        text: "the backend identity is built in unless its library is in the directory of \
               backends",
        matters: Model(|spec| spec.backend == "identity"),
    },
    Difference {
        row: "| `preserve_ordering` |",
        text: "preserve_ordering holds across instances, in the order of the requests",
        matters: Model(|spec| match &spec.scheduling {
            SchedulingChoice::Dynamic(batching) => batching.preserve_ordering,
            SchedulingChoice::Default
            | SchedulingChoice::Sequence(_)
            | SchedulingChoice::Ensemble(_) => false,
        }),
    },
    Difference {
        row: "| unloading a model or stopping the server while sequences are open |",
        text: "silent sequences end when their model is unloaded or the server stops; in Triton \
               they delay it",
        matters: Model(|spec| matches!(spec.scheduling, SchedulingChoice::Sequence(_))),
    },
    Difference {
        row: "| when an ensemble's request fails, or its client cancels it |",
        text: "a request to an ensemble fails as soon as a step does, and the other steps are \
               cancelled",
        matters: Model(|spec| matches!(spec.scheduling, SchedulingChoice::Ensemble(_))),
    },
    Difference {
        row: "| the cache key |",
        text: "responses are cached by shapes, types, requested outputs and parameters too, so \
               that fewer requests count as equal",
        matters: Model(|spec| spec.response_cache),
    },
    Difference {
        row: "| requests to a model with passive instance groups only |",
        text: "the model has passive instances only: its requests are refused; in Triton they \
               wait forever",
        matters: Model(|spec| {
            let mut groups = spec.instance_groups.iter();
            !spec.instance_groups.is_empty() && groups.all(|group| group.passive)
        }),
    },
    Difference {
        row: "| requests and responses that would hold more than `--memory-limit` together",
        text: "requests and responses may hold three quarters of the memory, and what needs more \
               is refused with 503 or RESOURCE_EXHAUSTED: --memory-limit",
        matters: Flags(|settings| matches!(settings.memory_limit, MemoryLimit::Default)),
    },
    Difference {
        row: "| an instance that waits for resources of the rate limiter |",
        text: "an instance that waits for resources of the rate limiter does not hold up instances \
               that need others",
        matters: Flags(|settings| settings.rate_limiting),
    },
];

const ONNXRUNTIME: &str = "onnxruntime";
const OPENVINO: &str = "openvino";
const TENSORFLOW: &str = "tensorflow";
const PYTHON: &str = "python";

/// The messages for the differences that matter. Each message lists the models that it concerns, or
/// no models if it concerns the server.
#[derive(Debug, Default)]
pub(super) struct Differences(BTreeMap<&'static str, Vec<String>>);

impl Differences {
    /// Collects the differences that follow from the flags.
    pub(super) fn of(settings: &Settings) -> Self {
        let mut found = Self::default();
        for difference in &DIFFERENCES {
            if let Flags(matters) = difference.matters
                && matters(settings)
            {
                found.0.entry(difference.text).or_default();
            }
        }
        found
    }

    /// Adds the differences that concern a model.
    pub(super) fn add(&mut self, model: &str, spec: &ModelSpec) {
        let settings = DIFFERENCES.iter().filter_map(|difference| match difference.matters {
            Model(matters) => matters(spec).then_some(difference.text),
            Flags(_) => None,
        });
        let is_set =
            |own: &&NonTritonParameter| spec.parameters.keys().any(|name| own.matches_name(name));
        let parameters = OWN_PARAMETERS.iter().filter(is_set).map(|own| own.effect);
        for text in settings.chain(parameters) {
            let models = self.0.entry(text).or_default();
            if !models.iter().any(|known| known == model) {
                models.push(model.to_owned());
            }
        }
    }

    /// The messages with their models, in table order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &[String])> {
        let texts = DIFFERENCES.iter().map(|difference| difference.text);
        texts.chain(OWN_PARAMETERS.map(|own| own.effect)).filter_map(|text| {
            self.0.get_key_value(text).map(|(text, models)| (*text, models.as_slice()))
        })
    }
}

#[cfg(test)]
mod tests {
    use galatea_config::SupportedFeatures;
    use galatea_pbtxt::parse_config_draft;

    use super::*;

    fn spec(text: &str) -> ModelSpec {
        let draft = parse_config_draft("config.pbtxt", text).unwrap();
        ModelSpec::clone(&draft.into_validated_spec(&SupportedFeatures::default()).unwrap())
    }

    #[test]
    fn each_is_a_row_of_a_page() {
        let page = include_str!("../../../../../docs/differences.md");
        for difference in &DIFFERENCES {
            assert!(page.contains(difference.row), "{}", difference.row);
        }
        let options = include_str!("../../../../../docs/schedulers.md");
        for own in OWN_PARAMETERS {
            let row = format!("\n| `{}`", own.name);
            assert!(options.contains(&row), "{row}");
        }
    }

    #[test]
    fn models_are_told_what_concerns_them() {
        let mut found = Differences::default();
        let model = "name: \"m\" backend: \"identity\" max_batch_size: 2 \
                     input { name: \"a\" data_type: TYPE_FP32 dims: 1 } \
                     output { name: \"b\" data_type: TYPE_FP32 dims: 1 }";
        found.add("one", &spec(model));
        found.add("two", &spec(&format!("{model} dynamic_batching {{ preserve_ordering: true }}")));
        let found: Vec<_> = found.iter().map(|(text, models)| (&text[..12], models)).collect();
        let both = [String::from("one"), String::from("two")];
        assert_eq!(found, [("the backend ", &both[..]), ("preserve_ord", &both[1..])]);
    }
}
