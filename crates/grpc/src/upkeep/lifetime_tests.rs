use super::*;

/// A connection in virtual time.
struct Simulation {
    upkeep: Upkeep,
    start: Instant,
    now: Instant,
    observed: Observed,
    /// The actions taken, along with their times in seconds.
    log: Vec<(UpkeepAction, u64)>,
}

impl Simulation {
    fn new(options: &KeepaliveOptions, age_max: Option<u64>) -> Self {
        let start = Instant::now();
        let upkeep = Upkeep::new(start, options, age_max.map(Duration::from_secs));
        let observed = Observed { has_read: false, has_calls: false, is_writing: false };
        Self { upkeep, start, now: start, observed, log: Vec::new() }
    }

    /// Takes steps until no action is left.
    fn settle(&mut self) {
        while let Some(action) = self.upkeep.step(self.now, self.observed) {
            self.observed.has_read = false;
            let second = self.now.duration_since(self.start).as_secs();
            self.log.push((action, second));
            if action == UpkeepAction::Close {
                return;
            }
        }
        self.observed.has_read = false;
    }

    fn is_closed(&self) -> bool {
        matches!(self.log.last(), Some((UpkeepAction::Close, _)))
    }

    /// Lets time pass, taking steps only when they are due.
    fn pass(&mut self, seconds: u64) {
        let end = self.now.checked_add(Duration::from_secs(seconds)).unwrap();
        while let Some(wakeup) = self.upkeep.wakeup().filter(|wakeup| *wakeup <= end) {
            assert!(wakeup > self.now || self.now == self.start, "steps without end");
            self.now = self.now.max(wakeup);
            self.settle();
            if self.is_closed() {
                return;
            }
        }
        self.now = end;
    }

    /// Lets bytes arrive. The driver takes a step immediately only while it waits for a ping.
    fn read(&mut self) {
        self.observed.has_read = true;
        if self.upkeep.is_pinging() {
            self.settle();
        }
    }

    /// Changes the connection's calls and responses.
    fn set(&mut self, has_calls: bool, is_writing: bool) {
        if has_calls {
            self.upkeep.call_begun();
        }
        (self.observed.has_calls, self.observed.is_writing) = (has_calls, is_writing);
        if self.upkeep.ends_when_idle() {
            self.settle();
        }
    }
}

fn seconds(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds))
}

fn options() -> KeepaliveOptions {
    KeepaliveOptions {
        time: seconds(80),
        timeout: seconds(20),
        first_call_timeout: Duration::from_secs(600),
        goaway_timeout: Duration::from_secs(5),
        ..KeepaliveOptions::default()
    }
}

/// Runs a script and compares the actions: `P` ping, `G` go away, `C` close, each followed by the
/// second at which it happens. A script step is one of these. `+N`: N seconds pass. `r`: bytes are
/// read. `c`, `i`: from now on, there are calls, or none. `w`: there is no call, but an unwritten
/// response. `g`: the client is asked to begin no more calls.
fn check_with(options: &KeepaliveOptions, age_max: Option<u64>, script: &str, expected: &str) {
    let mut simulation = Simulation::new(options, age_max);
    for step in script.split(' ') {
        match step.split_at(1) {
            ("+", number) => simulation.pass(number.parse().unwrap()),
            ("r", _) => simulation.read(),
            ("c", _) => simulation.set(true, false),
            ("i", _) => simulation.set(false, false),
            ("w", _) => simulation.set(false, true),
            ("g", _) => simulation.upkeep.goaway_sent(simulation.now),
            _ => panic!("{step}"),
        }
        if simulation.is_closed() {
            break;
        }
    }
    let log: Vec<String> = simulation
        .log
        .iter()
        .map(|(action, second)| {
            let name = match action {
                UpkeepAction::Ping => 'P',
                UpkeepAction::GoAway => 'G',
                UpkeepAction::Close => 'C',
            };
            format!("{name}{second}")
        })
        .collect();
    assert_eq!(log.join(" "), expected, "{script}");
}

fn check(script: &str, expected: &str) {
    check_with(&options(), None, script, expected);
}

#[test]
fn a_silent_client_with_calls_is_pinged_and_closed() {
    check("c +79", "");
    check("c +80", "P80");
    check("c +99", "P80");
    check("c +500", "P80 C100");
}

#[test]
fn whatever_is_read_keeps_a_connection() {
    check("c +80 r +79 r +1000", "P80 P240 C260");
    // Data that is read between two pings is noticed at most an eighth of the time later.
    check("c +40 r +79", "");
    check("c +40 r +90", "P130");
    check("c +81 r +80", "P80 P161");
    check("c +99 r +500", "P80 P179 C199");
}

#[test]
fn a_client_without_calls_may_be_silent() {
    check("c i +10000", "");
    check("c i +1000 r c +89", "");
    check("c i +1000 r c +90", "P1090");
    let permitted = KeepaliveOptions { permit_without_calls: true, ..options() };
    check_with(&permitted, None, "c i +10000", "P80 C100");
}

#[test]
fn a_ping_waits_for_a_call_and_not_the_other_way() {
    // The call ended while a ping was in flight, and the ping's acknowledgement still counts.
    check("c +80 i +20", "P80 C100");
    check("c +80 i r +20", "P80");
}

#[test]
fn without_times_there_are_no_pings() {
    let never = KeepaliveOptions { time: None, ..options() };
    check_with(&never, None, "c +100000", "");
    let patient = KeepaliveOptions { timeout: None, ..options() };
    check_with(&patient, None, "c +250", "P80 P160 P240");
    let hasty = KeepaliveOptions { timeout: seconds(0), ..options() };
    check_with(&hasty, None, "c +250", "P80 C80");
}

#[test]
fn pings_are_a_second_apart() {
    let options =
        KeepaliveOptions { time: Some(Duration::from_millis(10)), timeout: None, ..options() };
    check_with(&options, None, "c +3", "P0 P1 P2");
}

#[test]
fn a_connection_without_a_first_call_ends() {
    check("+599", "");
    check("+604", "G600");
    check("+10000", "G600 C605");
    check("+599 c i +10000", "");
}

#[test]
fn a_client_that_is_silent_about_the_end_is_closed_when_idle() {
    check("c i g +4", "");
    check("c i g +5", "C5");
    check("c g +10 i", "C10");
    check("c g +10 w +10 i", "C20");
    check("c g +3 i +1", "");
    check("c g +3 i +2", "C5");
    check("c g g +3 g i +2", "C5");
}

#[test]
fn an_old_connection_ends_within_its_grace() {
    let never = KeepaliveOptions { time: None, connection_age_grace: None, ..options() };
    check_with(&never, Some(100), "c +99", "");
    check_with(&never, Some(100), "c +10000", "G100");
    check_with(&never, Some(100), "c +110 i", "G100 C110");
    check_with(&never, Some(100), "c i +1000", "G100 C105");
    let graceful = KeepaliveOptions { connection_age_grace: seconds(30), ..never };
    check_with(&graceful, Some(100), "c +10000", "G100 C130");
    check_with(&graceful, Some(100), "c +50 g +10000", "C130");
    let hasty = KeepaliveOptions { connection_age_grace: seconds(0), ..graceful };
    check_with(&hasty, Some(100), "c +10000", "G100 C100");
}
