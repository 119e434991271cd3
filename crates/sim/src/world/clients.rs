//! Clients that send, cancel and vanish.

use std::collections::BTreeSet;

use galatea_policy::{
    BatchKey, Event, FailReason, RequestInfo, RequestKey, SchedulingSpec, SequencePosition, Time,
};

use super::talks::{Talks, random_talks};
use super::{Happening, Open, World};
use crate::driver::CorrelationId;
use crate::random::Random;

#[derive(Debug)]
pub(super) struct Client {
    pub(super) open: BTreeSet<RequestKey>,
    pub(super) talks: Talks,
    pub(super) manners: Manners,
    open_max: usize,
    pause_max: u64,
    rows_max: u32,
    batch_keys: u32,
    priority_max: u64,
    timeout_chance: u64,
    cancel_chance: u64,
    gone: bool,
}

/// What may be expected of a client, and so by it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Manners {
    /// Whatever comes to mind.
    Any,
    /// Starts and ends its sequences, has IDs of its own, and neither gives up nor
    /// sets time limits. It must be served.
    Good,
}

impl World {
    pub(super) fn turn(&mut self, now: Time, index: usize) -> Result<(), String> {
        if self.clients[index].gone || self.is_evening() {
            return Ok(());
        }
        let is_full = self.clients[index].open.len() >= self.clients[index].open_max;
        if !is_full {
            self.send(now, index)?;
        }
        // Time must pass for those who wait, so the pause is not always 0.
        let patience = if is_full { 10 } else { u64::from(self.random.percent(10)) };
        self.plan_within(self.clients[index].pause_max + patience, Happening::Turn(index));
        Ok(())
    }

    pub(super) fn vanish(&mut self, now: Time, index: usize) -> Result<(), String> {
        self.clients[index].gone = true;
        for key in self.clients[index].open.clone() {
            self.step_at(now, Event::Cancel(key))?;
        }
        Ok(())
    }

    fn send(&mut self, now: Time, index: usize) -> Result<(), String> {
        self.sent += 1;
        let reuse = self.reuse();
        let key = RequestKey(self.keys.take(reuse));
        let words = self.next_words(index);
        let client = &self.clients[index];
        let random = &mut self.random;
        let is_sequential = self.trace.setup.is_sequential();
        let least_rows = u32::from(self.trace.setup.spec.max_batch_size != 0);
        let mut ticket = RequestInfo {
            key,
            batch_size: if is_sequential {
                1
            } else {
                random.between_u32(least_rows, client.rows_max)
            },
            batch_key: BatchKey(random.between_u32(0, client.batch_keys)),
            priority: random.between(0, client.priority_max),
            timeout_ns: if random.percent(client.timeout_chance) {
                random.between(1, 60)
            } else {
                0
            },
            sequence: None,
        };
        let cancels = random.percent(client.cancel_chance);
        let iterations_left = if self.is_iterative() {
            self.random.between(0, self.weather.iterations_max)
        } else {
            0
        };
        let talk = words.and_then(|words| words.talk);
        let last_word = words.map_or(Time(0), |words| words.last_word);
        let open = Open { client: index, number: self.sent, talk, last_word, iterations_left };
        self.open.insert(key, open);
        self.clients[index].open.insert(key);
        if self.is_iterative() {
            let reuse = self.reuse();
            let sequence = self.names.anonymous(reuse);
            ticket.sequence = Some(SequencePosition { sequence, start: true, end: false });
        } else if let Some(words) = words {
            self.enter(now, &mut ticket, words)?;
        }
        self.step_at(now, Event::Enqueue(ticket))?;
        self.note_word(index, talk);
        if cancels {
            self.plan_within(30, Happening::Cancel(key, self.sent));
        }
        Ok(())
    }

    /// A well-behaved client is never refused, except by an unloading model, or
    /// after its own long silence.
    pub(super) fn check_refusal(&self, key: RequestKey, reason: FailReason) -> Result<(), String> {
        let Some(open) = self.open.get(&key) else {
            return Err(format!("{key:?} fails with {reason:?} after its outcome"));
        };
        let client = &self.clients[open.client];
        let sequential = self.trace.setup.is_sequential();
        if client.manners != Manners::Good || !sequential || self.is_iterative() {
            return Ok(());
        }
        let is_fair = match reason {
            FailReason::Draining => self.draining,
            FailReason::MissingStart => self.was_silent(open),
            FailReason::Cancelled
            | FailReason::QueueFull
            | FailReason::TimeoutExpired
            | FailReason::NoSequence
            | FailReason::SequenceTimeoutExpired => false,
        };
        if is_fair {
            return Ok(());
        }
        Err(format!("{key:?} of a well-behaved client fails with {reason:?}"))
    }
}

pub(super) fn random_client(random: &mut Random, spec: &SchedulingSpec, number: u64) -> Client {
    let rows_limit = if spec.max_batch_size == 0 { 3 } else { spec.max_batch_size };
    let rows_max = if random.percent(50) { 1 } else { random.between_u32(1, rows_limit) };
    let chances = [0, 0, 20, 80];
    let manners = if random.percent(30) { Manners::Good } else { Manners::Any };
    let ask_chance = |random: &mut Random| match manners {
        Manners::Any => random.pick(&chances),
        Manners::Good => 0,
    };
    Client {
        open: BTreeSet::new(),
        talks: random_talks(random, spec, manners, CorrelationId(100 * (number + 1))),
        manners,
        open_max: random.pick(&[1, 4, 12, 30]),
        pause_max: random.pick(&[0, 1, 5, 20, 60]),
        rows_max,
        batch_keys: random.pick(&[0, 0, 1, 2]),
        priority_max: random.pick(&[0, 2, 4]),
        timeout_chance: ask_chance(random),
        cancel_chance: ask_chance(random),
        gone: false,
    }
}
