//! Converts recorded traffic to lines of a traffic file.

use std::collections::BTreeMap;
use std::sync::Arc;

use galatea_infer::CorrelationId;
use galatea_policy::InstanceId;
use galatea_traffic::{RecordedExecution, RecordedRequest, RequestExecution, TrafficLine};

use super::recorder::{EndKind, EndedRequest, Execution, TakenRecords};

/// The approximate length of a line, in bytes.
const USUAL_BYTES: usize = 192;

/// The traffic recorded since the last read.
#[derive(Debug)]
pub(crate) struct TakenTraffic {
    taken: TakenRecords,
    names: BTreeMap<InstanceId, Arc<str>>,
}

impl TakenTraffic {
    pub(in crate::dispatcher) fn new(
        taken: TakenRecords,
        names: BTreeMap<InstanceId, String>,
    ) -> Self {
        let names = names.into_iter().map(|(instance, name)| (instance, name.into())).collect();
        Self { taken, names }
    }

    /// The lines, each with its newline: requests by end time, then executions.
    pub(crate) fn to_lines(&self) -> String {
        let TakenRecords { requests, executions, lost } = &self.taken;
        let count = requests.len().saturating_add(executions.len());
        let mut text = Vec::with_capacity(count.saturating_mul(USUAL_BYTES));
        for ended in requests {
            self.request(ended).write(&mut text);
            text.push(b'\n');
        }
        for execution in executions {
            self.execution(execution).write(&mut text);
            text.push(b'\n');
        }
        if *lost > 0 {
            TrafficLine::Lost(*lost).write(&mut text);
            text.push(b'\n');
        }
        // JSON generated from strings is valid UTF-8.
        String::from_utf8(text).unwrap_or_default()
    }

    fn request(&self, ended: &EndedRequest) -> RecordedRequest {
        let arrived = &ended.arrived;
        let (status, executed) = match &ended.end {
            EndKind::Refused(reason) => (reason.name(), None),
            EndKind::Executed(execution) => {
                let executed = RequestExecution {
                    execution: execution.number,
                    compute_ns: execution.duration_ns,
                    batch: execution.rows,
                    close: execution.reason.name().into(),
                    instance: self.name(execution.instance),
                };
                (arrived.end.name(), Some(executed))
            }
        };
        RecordedRequest {
            at_ns: arrived.at_ns,
            rows: arrived.rows,
            dims: arrived.dims.to_vec(),
            length: arrived.length,
            priority: arrived.priority,
            timeout_ns: arrived.timeout_ns,
            deadline_ns: arrived.deadline_ns,
            sequence: match &arrived.sequence {
                CorrelationId::None => None,
                CorrelationId::Number(number) => Some((*number).into()),
                CorrelationId::Text(text) => Some(text.as_str().into()),
            },
            status: status.into(),
            queue_ns: ended.queue_ns,
            executed,
        }
    }

    fn execution(&self, execution: &Execution) -> RecordedExecution {
        RecordedExecution {
            number: execution.number,
            at_ns: execution.at_ns,
            duration_ns: execution.duration_ns,
            rows: execution.rows,
            requests: execution.requests,
            length: execution.length,
            busy: execution.busy,
            close: execution.reason.name().into(),
            instance: self.name(execution.instance),
        }
    }

    fn name(&self, instance: InstanceId) -> Arc<str> {
        self.names.get(&instance).cloned().unwrap_or_default()
    }
}
