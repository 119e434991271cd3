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
        let key = RequestKey(self.next_key);
        self.next_key += 1;
        self.step(ResidencyEvent::ClientLoad { key, model: name.into() })
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
