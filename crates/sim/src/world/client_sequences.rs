//! The sequences of clients. Clients open, continue, end or forget sequences, reuse IDs, continue
//! sequences that they didn't start, and send requests without an ID.

use galatea_policy::{
    RequestInfo, RequestKey, SchedulerEvent, SchedulingMode, SchedulingSpec, SequencePosition, Time,
};

use super::behavior::ClientBehavior;
use super::{OpenRequest, World};
use crate::keys::CorrelationId;
use crate::random::Random;

/// A client's view of its sequences.
#[derive(Debug)]
pub(super) struct ClientSequences {
    open: Vec<ClientSequence>,
    begun: u64,
    open_max: usize,
    length_max: u64,
    /// The first of the client's own IDs. Without its own IDs, the client shares a few IDs with
    /// others.
    own_ids: Option<CorrelationId>,
    forget_end_chance: u64,
    restart_chance: u64,
    /// The chance of continuing an ID that the client didn't start.
    foreign_id_chance: u64,
    /// The chance of sending no ID.
    no_id_chance: u64,
}

#[derive(Debug)]
struct ClientSequence {
    /// The number, which is unique among the client's sequences.
    number: u64,
    id: CorrelationId,
    requests_left: u64,
    /// The time of the sequence's last request or reply.
    last_activity: Time,
}

/// The sequence fields of a client's next request.
#[derive(Copy, Clone, Debug)]
pub(super) struct ClientStep {
    /// The number of the sequence; `None` if the client didn't begin it.
    pub(super) sequence: Option<u64>,
    id: CorrelationId,
    start: bool,
    end: bool,
    /// The last activity of the sequence before this request.
    pub(super) last_activity: Time,
}

/// The number of IDs shared by clients.
const SHARED_IDS: u64 = 8;

impl World {
    pub(super) fn is_iterative(&self) -> bool {
        match &self.trace.setup.spec.mode {
            SchedulingMode::Sequence(settings) => settings.iterative,
            SchedulingMode::Default | SchedulingMode::Dynamic(_) | SchedulingMode::Deadline(_) => {
                false
            }
        }
    }

    /// Returns the sequence fields of the client's next request; `None` without sequences, or if
    /// the client sends no ID.
    pub(super) fn next_step(&mut self, index: usize) -> Option<ClientStep> {
        if !self.trace.setup.is_sequential() || self.is_iterative() {
            return None;
        }
        let random = &mut self.random;
        let sequences = &mut self.clients[index].sequences;
        if random.percent(sequences.no_id_chance) {
            return None;
        }
        if random.percent(sequences.foreign_id_chance) {
            let id = CorrelationId(random.between(1, SHARED_IDS));
            let end = random.percent(20);
            let last_activity = Time(0);
            return Some(ClientStep { sequence: None, id, start: false, end, last_activity });
        }
        let begins = sequences.open.is_empty() || random.percent(40);
        if begins && sequences.open.len() < sequences.open_max {
            return Some(sequences.begin(random));
        }
        Some(sequences.advance(random))
    }

    /// Assigns a sequence to the request as the server does: a tick first ends the sequences whose
    /// time is over, so that the ID refers to either a live sequence or a new one.
    pub(super) fn assign_sequence(
        &mut self,
        now: Time,
        info: &mut RequestInfo,
        step: ClientStep,
    ) -> Result<(), String> {
        let reuse = self.reuse();
        let mut mark = |world: &mut World| {
            let sequence = world.correlation_ids.intern(step.id, reuse);
            info.sequence = Some(SequencePosition { sequence, start: step.start, end: step.end });
            world.harness.allows(now, &SchedulerEvent::Enqueue(*info))
        };
        if !mark(self) {
            self.step_at(now, SchedulerEvent::Tick)?;
            assert!(mark(self), "after a tick every sequence accepts requests, or is new");
        }
        Ok(())
    }

    /// Records a request of a client's sequence.
    pub(super) fn record_activity(&mut self, client: usize, sequence: Option<u64>) {
        let now = self.harness.now();
        let mut sequences = self.clients[client].sequences.open.iter_mut();
        if let Some(sequence) = sequences.find(|one| Some(one.number) == sequence) {
            sequence.last_activity = now;
        }
    }

    /// Returns true if the request's sequence may have ended as idle, because its client sent
    /// nothing during the idle time.
    pub(super) fn was_idle(&self, refused: &OpenRequest) -> bool {
        let SchedulingMode::Sequence(settings) = &self.trace.setup.spec.mode else { return false };
        let idle_ns = settings.max_sequence_idle_ns;
        let since = self.harness.now().saturating_since(refused.last_activity);
        idle_ns != 0 && since >= idle_ns
    }

    /// Informs a client that its sequence has ended.
    pub(super) fn drop_sequence(&mut self, key: RequestKey) {
        if let Some(OpenRequest { client, sequence: Some(number), .. }) = self.open.get(&key) {
            self.clients[*client].sequences.open.retain(|sequence| sequence.number != *number);
        }
    }
}

impl ClientSequences {
    fn begin(&mut self, random: &mut Random) -> ClientStep {
        let id = match self.own_ids {
            Some(CorrelationId(first)) => {
                let is_new = |id: &u64| self.open.iter().all(|sequence| sequence.id.0 != *id);
                CorrelationId((first..).find(is_new).expect("numbers don't run out"))
            }
            None => CorrelationId(random.between(1, SHARED_IDS)),
        };
        let requests_left = random.between(1, self.length_max);
        self.begun += 1;
        self.open.push(ClientSequence {
            number: self.begun,
            id,
            requests_left,
            last_activity: Time(0),
        });
        let last = self.open.len() - 1;
        self.step(random, last, true)
    }

    fn advance(&mut self, random: &mut Random) -> ClientStep {
        let last = u64::try_from(self.open.len() - 1).expect("few sequences");
        let index = usize::try_from(random.between(0, last)).expect("an index");
        let restarts = random.percent(self.restart_chance);
        self.step(random, index, restarts)
    }

    fn step(&mut self, random: &mut Random, index: usize, start: bool) -> ClientStep {
        let sequence = &mut self.open[index];
        sequence.requests_left = sequence.requests_left.saturating_sub(1);
        let is_last = sequence.requests_left == 0;
        let ClientSequence { number, id, last_activity, .. } = *sequence;
        if is_last {
            self.open.swap_remove(index);
        }
        let end = is_last && !random.percent(self.forget_end_chance);
        ClientStep { sequence: Some(number), id, start, end, last_activity }
    }
}

pub(super) fn random_client_sequences(
    random: &mut Random,
    spec: &SchedulingSpec,
    behavior: ClientBehavior,
    own_ids: CorrelationId,
) -> ClientSequences {
    let chance = |random: &mut Random, choices: &[u64]| match behavior {
        ClientBehavior::Arbitrary => random.pick(choices),
        ClientBehavior::WellBehaved => 0,
    };
    let slots = usize::try_from(spec.max_batch_size).unwrap_or(0).max(1);
    ClientSequences {
        open: Vec::new(),
        begun: 0,
        open_max: random.pick(&[1, 2, 4, 2 * slots]),
        length_max: random.pick(&[1, 3, 6, 12]),
        own_ids: (behavior == ClientBehavior::WellBehaved || random.percent(50)).then_some(own_ids),
        forget_end_chance: chance(random, &[0, 20, 80]),
        restart_chance: chance(random, &[0, 0, 10]),
        foreign_id_chance: chance(random, &[0, 0, 5, 15]),
        no_id_chance: chance(random, &[0, 0, 5]),
    }
}
