//! Tests of the residency, as texts of events and actions.

use super::*;

/// A residency with models of given bytes, each of which takes 100 ns to load.
struct Server {
    residency: Residency,
    now: Time,
    next_key: u64,
}

impl Server {
    fn new(budget: u64, models: &[(&str, u64, &[&str])]) -> Self {
        let settings = ResidencySettings {
            budget: MemoryBudget::host(budget),
            waiting_per_model_max: 3,
            waiting_max: 4,
            ..ResidencySettings::default()
        };
        let residency = Residency::new(settings);
        let mut server = Self { residency, now: Time(0), next_key: 1 };
        for (name, bytes, dependencies) in models {
            let estimate = ModelEstimate {
                bytes: MemoryByPool::host(*bytes),
                load_ns: 100,
                dependencies: dependencies.iter().map(|name| ModelId::from(*name)).collect(),
            };
            server.step(ResidencyEvent::Known(ModelId::from(*name), estimate));
        }
        server
    }

    fn step(&mut self, event: ResidencyEvent) -> String {
        let mut out = Vec::new();
        self.residency.step(self.now, event, &mut out);
        out.iter().map(text).collect::<Vec<_>>().join(", ")
    }

    fn send(&mut self, name: &str, origin: RequestOrigin, deadline: Time) -> String {
        let key = RequestKey(self.next_key);
        self.next_key += 1;
        let model = ModelId::from(name);
        self.step(ResidencyEvent::Request(ResidencyRequest { key, model, deadline, origin }))
    }

    fn request(&mut self, name: &str) -> String {
        self.send(name, RequestOrigin::Client, Time::MAX)
    }

    fn client_load(&mut self, name: &str) -> String {
        self.load_from(RequestOrigin::Client, name)
    }

    fn load_from(&mut self, origin: RequestOrigin, name: &str) -> String {
        let key = RequestKey(self.next_key);
        self.next_key += 1;
        self.step(ResidencyEvent::ClientLoad { key, model: name.into(), origin })
    }

    /// Completes a load as estimated.
    fn loaded(&mut self, name: &str) -> String {
        let status = self.residency.status().find(|status| &*status.model == name).unwrap();
        let measured = LoadMeasurement { bytes: status.bytes, load_ns: 100 };
        self.step(ResidencyEvent::Loaded(name.into(), measured))
    }

    fn unloaded(&mut self, name: &str) -> String {
        self.step(ResidencyEvent::Unloaded(name.into()))
    }

    fn released(&mut self, name: &str) -> String {
        self.step(ResidencyEvent::Released(name.into()))
    }

    /// Loads models and releases them.
    fn with_idle(mut self, names: &[&str]) -> Self {
        for name in names {
            self.request(name);
            self.loaded(name);
            self.released(name);
        }
        self
    }

    fn pass(&mut self, ns: u64) -> String {
        self.now = self.now.saturating_add(ns);
        self.step(ResidencyEvent::Tick)
    }
}

fn text(action: &ResidencyAction) -> String {
    match action {
        ResidencyAction::Admit(key) => format!("admit {}", key.0),
        ResidencyAction::Wait { key, ready_at } => format!("{} waits until {}", key.0, ready_at.0),
        ResidencyAction::Load(name) => format!("load {name}"),
        ResidencyAction::Unload(name) => format!("unload {name}"),
        ResidencyAction::Refuse(key, refusal) => {
            let after = refusal.retry_after_ns.map(|ns| format!(" for {ns}")).unwrap_or_default();
            format!("refuse {}: {:?}{after}", key.0, refusal.reason)
        }
    }
}

const PLAIN: [(&str, u64, &[&str]); 4] =
    [("a", 40, &[]), ("b", 40, &[]), ("c", 40, &[]), ("large", 120, &[])];

#[test]
fn a_model_is_loaded_once_for_all_that_wait() {
    let mut server = Server::new(100, &PLAIN);
    assert_eq!(server.request("a"), "load a, 1 waits until 200");
    assert_eq!(server.request("a"), "2 waits until 200");
    assert_eq!(server.loaded("a"), "admit 1, admit 2");
    assert_eq!(server.request("a"), "admit 3");
}

#[test]
fn the_least_valuable_idle_model_is_unloaded() {
    let mut server = Server::new(100, &PLAIN).with_idle(&["a", "b"]);
    server.request("b");
    server.released("b");
    server.pass(1_000);
    assert_eq!(server.request("c"), "unload a, 4 waits until 1200");
    assert_eq!(server.unloaded("a"), "load c");
    assert_eq!(server.loaded("c"), "admit 4");
}

#[test]
fn uses_that_are_reported_later_count() {
    let mut server = Server::new(100, &PLAIN).with_idle(&["a", "b"]);
    server.step(ResidencyEvent::Used("a".into(), 3));
    server.step(ResidencyEvent::Used("b".into(), 1));
    server.pass(1_000);
    assert!(server.request("c").starts_with("unload b"));
}

#[test]
fn a_model_in_use_drains_for_another_one() {
    let mut server = Server::new(100, &PLAIN).with_idle(&["a", "b"]);
    server.pass(1_000);
    assert_eq!(server.client_load("b"), "admit 3");
    assert_eq!(server.request("a"), "admit 4");
    assert_eq!(server.request("c"), "5 waits until 1200");
    assert!(server.request("a").starts_with("6 waits"), "a client's request waits");
    assert_eq!(server.send("a", RequestOrigin::Sequence, Time::MAX), "admit 7");
    assert_eq!(server.released("a"), "");
    assert_eq!(server.released("a"), "unload a");
    assert_eq!(server.unloaded("a"), "load c");
    assert_eq!(server.loaded("c"), "admit 5");
}

#[test]
fn a_sum_beyond_the_budget_is_refused_with_its_numbers() {
    let models: [(&str, u64, &[&str]); 3] =
        [("a", 60, &[]), ("b", 60, &[]), ("both", 0, &["a", "b"])];
    let mut server = Server::new(100, &models);
    let over = "OverBudget { pool: MemoryPoolId(0), needed: 120, limit: 100, pinned: 0 }";
    assert_eq!(server.request("both"), format!("refuse 1: {over}"));
    server.client_load("a");
    server.loaded("a");
    let over = "OverBudget { pool: MemoryPoolId(0), needed: 60, limit: 100, pinned: 60 }";
    assert_eq!(server.request("b"), format!("refuse 3: {over}"));
}

#[test]
fn an_ensemble_is_loaded_after_its_models_and_keeps_them() {
    let models: [(&str, u64, &[&str]); 4] =
        [("a", 40, &[]), ("b", 40, &[]), ("both", 0, &["a", "b"]), ("c", 40, &[])];
    let mut server = Server::new(100, &models);
    assert!(server.request("both").starts_with("load a, load b, 1 waits"));
    assert_eq!(server.loaded("a"), "");
    assert_eq!(server.loaded("b"), "load both");
    assert_eq!(server.loaded("both"), "admit 1");
    server.pass(1_000);
    assert!(server.request("c").starts_with("2 waits"), "its models are in use");
    assert_eq!(server.released("both"), "unload both, unload a");
    assert_eq!(server.unloaded("both"), "");
    assert_eq!(server.unloaded("a"), "load c");
}

#[test]
fn too_many_waiting_requests_are_refused_with_the_predicted_time() {
    let mut server = Server::new(100, &PLAIN);
    for _ in 0..3 {
        server.request("a");
    }
    assert_eq!(server.request("a"), "refuse 4: TooManyWaitingForModel for 200");
    server.request("b");
    assert!(server.request("c").starts_with("refuse 6: TooManyWaiting for "));
}

#[test]
fn a_deadline_ends_a_wait_and_the_load_goes_on() {
    let mut server = Server::new(100, &PLAIN);
    server.send("a", RequestOrigin::Client, Time(50));
    assert_eq!(server.residency.next_wakeup(), Some(Time(50)));
    assert_eq!(server.pass(50), "refuse 1: DeadlineExceeded for 150");
    assert_eq!(server.loaded("a"), "");
    assert_eq!(server.request("a"), "admit 2");
}

#[test]
fn a_deadline_before_the_predicted_time_is_refused_at_once() {
    let mut server = Server::new(60, &PLAIN).with_idle(&["a"]);
    server.pass(1_000);
    server.request("b");
    server.unloaded("a");
    server.loaded("b");
    server.released("b");
    server.pass(1_000);
    let refusal = server.send("a", RequestOrigin::Client, Time(2_010));
    assert_eq!(refusal, "unload b, refuse 3: TooLate for 175");
    assert_eq!(server.unloaded("b"), "load a");
}

#[test]
fn clients_load_and_unload() {
    let mut server = Server::new(80, &PLAIN);
    assert!(server.client_load("a").starts_with("load a, 1 waits"));
    assert_eq!(server.loaded("a"), "admit 1");
    server.request("b");
    server.loaded("b");
    server.released("b");
    server.pass(1_000);
    assert!(server.request("c").starts_with("unload b"), "a stays");
    let unload = ResidencyEvent::ClientUnload("a".into());
    assert_eq!(server.step(unload), "unload a");
    assert_eq!(server.request("a"), "refuse 4: UnloadedByClient(\"a\")");
    server.unloaded("a");
    server.unloaded("b");
    assert!(server.client_load("a").starts_with("load a, 5 waits"));
}

#[test]
fn a_failed_load_is_repeated_after_a_pause() {
    let mut server = Server::new(80, &PLAIN);
    server.request("a");
    let failed = || ResidencyEvent::LoadFailed("a".into());
    assert_eq!(server.step(failed()), "refuse 1: LoadFailed(\"a\") for 1000000000");
    server.pass(400_000_000);
    assert_eq!(server.request("a"), "refuse 2: LoadFailed(\"a\") for 600000000");
    server.pass(600_000_000);
    assert!(server.request("a").starts_with("load a"));
    assert_eq!(server.step(failed()), "refuse 3: LoadFailed(\"a\") for 2000000000");
}

#[test]
fn a_nested_request_does_not_wait_for_a_model_in_use() {
    let mut server = Server::new(80, &PLAIN).with_idle(&["a", "b"]);
    server.request("a");
    let nested = server.send("c", RequestOrigin::Nested, Time::MAX);
    assert!(nested.starts_with("unload b, 4 waits"), "{nested}");
    let mut server = Server::new(80, &PLAIN).with_idle(&["a", "b"]);
    server.request("a");
    server.request("b");
    let nested = server.send("c", RequestOrigin::Nested, Time::MAX);
    assert_eq!(nested, "refuse 5: WouldDeadlock");
    assert_eq!(server.request("a"), "admit 6");
}

#[test]
fn a_nested_load_does_not_wait_for_a_model_in_use() {
    let mut server = Server::new(80, &PLAIN).with_idle(&["a", "b"]);
    server.request("a");
    let nested = server.load_from(RequestOrigin::Nested, "c");
    assert!(nested.starts_with("unload b, 4 waits"), "{nested}");
    let mut server = Server::new(80, &PLAIN).with_idle(&["a", "b"]);
    server.request("a");
    server.request("b");
    assert_eq!(server.load_from(RequestOrigin::Nested, "c"), "refuse 5: WouldDeadlock");
    // The model isn't pinned, so later requests may still evict it.
    let pinned = server.residency.status().filter(|status| status.is_pinned).count();
    assert_eq!(pinned, 0);
    assert_eq!(server.request("a"), "admit 6");
    // A client's load waits, and a nested one beside it doesn't.
    assert!(server.client_load("c").starts_with("7 waits"));
    assert!(server.load_from(RequestOrigin::Nested, "c").starts_with("refuse 8: WouldDeadlock"));
    let pinned = server.residency.status().filter(|status| status.is_pinned).count();
    assert_eq!(pinned, 1);
}

#[test]
fn a_model_that_has_just_come_stays() {
    let mut server = Server::new(80, &PLAIN).with_idle(&["a", "b"]);
    server.request("a");
    server.request("b");
    assert!(server.request("c").starts_with("5 waits"));
    assert_eq!(server.residency.next_wakeup(), Some(Time(300)));
    server.released("b");
    assert_eq!(server.residency.next_wakeup(), Some(Time(50)), "an idle one leaves earlier");
    assert_eq!(server.pass(50), "unload b");
}

#[test]
fn a_smaller_budget_unloads_models() {
    let mut server = Server::new(80, &PLAIN).with_idle(&["a", "b"]);
    server.request("b");
    assert_eq!(server.step(ResidencyEvent::Budget(MemoryBudget::host(70))), "unload a");
    server.unloaded("a");
    assert_eq!(server.step(ResidencyEvent::Measured("b".into(), MemoryByPool::host(75))), "");
    assert_eq!(server.released("b"), "unload b", "it drained");
}

#[test]
fn only_models_in_the_pool_that_is_full_are_unloaded() {
    let mut server = Server::new(100, &PLAIN).with_idle(&["a"]);
    let gpu = MemoryPoolId::gpu(0);
    server.step(ResidencyEvent::Budget(MemoryBudget::host(100).with(gpu, 50)));
    for name in ["g", "h"] {
        let bytes = MemoryByPool::default().with(gpu, 40);
        let estimate = ModelEstimate { bytes, load_ns: 100, dependencies: Vec::new() };
        server.step(ResidencyEvent::Known(name.into(), estimate));
    }
    let mut server = server.with_idle(&["g"]);
    server.pass(1_000);
    assert!(server.request("h").starts_with("unload g"));
    assert_eq!(server.residency.state("a"), Some(ResidencyState::Resident));
}

#[test]
fn earlier_dependencies_stay_while_they_may_be_in_use() {
    let models: [(&str, u64, &[&str]); 4] =
        [("a", 40, &[]), ("b", 40, &[]), ("net", 0, &["a"]), ("c", 40, &[])];
    let mut server = Server::new(80, &models);
    server.request("net");
    server.loaded("a");
    server.loaded("net");
    let estimate = ModelEstimate { dependencies: vec!["b".into()], ..ModelEstimate::default() };
    server.step(ResidencyEvent::Known("net".into(), estimate));
    server.client_load("b");
    server.loaded("b");
    server.pass(1_000);
    assert!(server.request("c").starts_with("3 waits"), "a is in use by an earlier revision");
    assert_eq!(server.released("net"), "unload a");
}

#[test]
fn a_model_that_left_the_repository_is_unloaded_and_deleted() {
    let mut server = Server::new(80, &PLAIN).with_idle(&["a"]);
    assert_eq!(server.step(ResidencyEvent::Forgotten("a".into())), "unload a");
    assert_eq!(server.request("a"), "refuse 2: UnknownModel(\"a\")");
    server.unloaded("a");
    assert_eq!(server.residency.state("a"), None);
}
