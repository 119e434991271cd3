//! What clients say of sequences: they open them, go on, end or forget them, use
//! IDs again, start in the middle, and leave out what is needed.

use galatea_policy::{
    Event, RequestInfo, RequestKey, SchedulingMode, SchedulingSpec, SequencePosition, Time,
};

use super::clients::Manners;
use super::{Open, World};
use crate::driver::CorrelationId;
use crate::random::Random;

/// A client's sequences, as it sees them.
#[derive(Debug)]
pub(super) struct Talks {
    open: Vec<Talk>,
    begun: u64,
    open_max: usize,
    length_max: u64,
    /// IDs from here on are the client's own; if there are none it shares the
    /// first few with others.
    own_ids: Option<CorrelationId>,
    forget_end_chance: u64,
    restart_chance: u64,
    /// Chance to go on with an ID that it did not start.
    stranger_chance: u64,
    /// Chance to name no ID.
    nameless_chance: u64,
}

#[derive(Debug)]
struct Talk {
    /// No two talks of a client have the same.
    number: u64,
    id: CorrelationId,
    requests_left: u64,
    /// When it last said something or was answered.
    last_word: Time,
}

/// What a request says of its sequence.
#[derive(Copy, Clone, Debug)]
pub(super) struct Words {
    /// The talk's; none if the client did not begin it.
    pub(super) talk: Option<u64>,
    id: CorrelationId,
    start: bool,
    end: bool,
    /// Of the talk, before this.
    pub(super) last_word: Time,
}

/// IDs that clients without manners share.
const SHARED_IDS: u64 = 8;

impl World {
    pub(super) fn is_iterative(&self) -> bool {
        match &self.trace.setup.spec.mode {
            SchedulingMode::Sequence(settings) => settings.iterative,
            SchedulingMode::Default | SchedulingMode::Dynamic(_) => false,
        }
    }

    /// What the client's next request says; nothing if there is nothing to say, or
    /// if it forgets to.
    pub(super) fn next_words(&mut self, index: usize) -> Option<Words> {
        if !self.trace.setup.is_sequential() || self.is_iterative() {
            return None;
        }
        let random = &mut self.random;
        let talks = &mut self.clients[index].talks;
        if random.percent(talks.nameless_chance) {
            return None;
        }
        if random.percent(talks.stranger_chance) {
            let id = CorrelationId(random.between(1, SHARED_IDS));
            let end = random.percent(20);
            let last_word = Time(0);
            return Some(Words { talk: None, id, start: false, end, last_word });
        }
        let begins = talks.open.is_empty() || random.percent(40);
        if begins && talks.open.len() < talks.open_max {
            return Some(talks.begin(random));
        }
        Some(talks.go_on(random))
    }

    /// Gives the request its sequence, as the server does: time that has passed
    /// ends sequences first, so that the ID means what it means now.
    pub(super) fn enter(
        &mut self,
        now: Time,
        ticket: &mut RequestInfo,
        words: Words,
    ) -> Result<(), String> {
        let reuse = self.reuse();
        let mut mark = |world: &mut World| {
            let sequence = world.names.intern(words.id, reuse);
            ticket.sequence =
                Some(SequencePosition { sequence, start: words.start, end: words.end });
            world.harness.allows(now, &Event::Enqueue(*ticket))
        };
        if !mark(self) {
            self.step_at(now, Event::Tick)?;
            assert!(mark(self), "after a tick every sequence takes requests, or is new");
        }
        Ok(())
    }

    /// A client said something of a talk, or was answered.
    pub(super) fn note_word(&mut self, client: usize, talk: Option<u64>) {
        let now = self.harness.now();
        let mut talks = self.clients[client].talks.open.iter_mut();
        if let Some(talk) = talks.find(|one| Some(one.number) == talk) {
            talk.last_word = now;
        }
    }

    /// Whether the request's sequence may have been forgotten: its client was
    /// silent for long, with nothing unanswered.
    pub(super) fn was_silent(&self, refused: &Open) -> bool {
        let SchedulingMode::Sequence(settings) = &self.trace.setup.spec.mode else { return false };
        let idle_ns = settings.max_sequence_idle_ns;
        let same_talk = |open: &&Open| (open.client, open.talk) == (refused.client, refused.talk);
        let since = self.harness.now().saturating_since(refused.last_word);
        let is_alone = self.open.values().filter(same_talk).count() == 1;
        idle_ns != 0 && since >= idle_ns && is_alone
    }

    /// A client learns that its sequence is forgotten.
    pub(super) fn drop_talk(&mut self, key: RequestKey) {
        if let Some(Open { client, talk: Some(number), .. }) = self.open.get(&key) {
            self.clients[*client].talks.open.retain(|talk| talk.number != *number);
        }
    }
}

impl Talks {
    fn begin(&mut self, random: &mut Random) -> Words {
        let id = match self.own_ids {
            Some(CorrelationId(first)) => {
                let is_new = |id: &u64| self.open.iter().all(|talk| talk.id.0 != *id);
                CorrelationId((first..).find(is_new).expect("numbers don't run out"))
            }
            None => CorrelationId(random.between(1, SHARED_IDS)),
        };
        let requests_left = random.between(1, self.length_max);
        self.begun += 1;
        self.open.push(Talk { number: self.begun, id, requests_left, last_word: Time(0) });
        let last = self.open.len() - 1;
        self.say(random, last, true)
    }

    fn go_on(&mut self, random: &mut Random) -> Words {
        let last = u64::try_from(self.open.len() - 1).expect("few talks");
        let index = usize::try_from(random.between(0, last)).expect("an index");
        let restarts = random.percent(self.restart_chance);
        self.say(random, index, restarts)
    }

    fn say(&mut self, random: &mut Random, index: usize, start: bool) -> Words {
        let talk = &mut self.open[index];
        talk.requests_left = talk.requests_left.saturating_sub(1);
        let is_last = talk.requests_left == 0;
        let Talk { number, id, last_word, .. } = *talk;
        if is_last {
            self.open.swap_remove(index);
        }
        let end = is_last && !random.percent(self.forget_end_chance);
        Words { talk: Some(number), id, start, end, last_word }
    }
}

pub(super) fn random_talks(
    random: &mut Random,
    spec: &SchedulingSpec,
    manners: Manners,
    own_ids: CorrelationId,
) -> Talks {
    let chance = |random: &mut Random, choices: &[u64]| match manners {
        Manners::Any => random.pick(choices),
        Manners::Good => 0,
    };
    let slots = usize::try_from(spec.max_batch_size).unwrap_or(0).max(1);
    Talks {
        open: Vec::new(),
        begun: 0,
        open_max: random.pick(&[1, 2, 4, 2 * slots]),
        length_max: random.pick(&[1, 3, 6, 12]),
        own_ids: (manners == Manners::Good || random.percent(50)).then_some(own_ids),
        forget_end_chance: chance(random, &[0, 20, 80]),
        restart_chance: chance(random, &[0, 0, 10]),
        stranger_chance: chance(random, &[0, 0, 5, 15]),
        nameless_chance: chance(random, &[0, 0, 5]),
    }
}
