//! Simulation of the plan under random orders, results and interleavings.
//!
//! A single thread steps the plan and performs its effects with the real worker, but in any order.
//! Meanwhile, orders to load, unload and poll arrive, and loads fail. After each step the registry
//! must agree with the plan. At the end, each order must have received one reply, and no work may
//! be left.

use std::sync::Mutex;

use galatea_dispatch::{LoaderOptions, ModelMetricOptions, VersionLoader};
use galatea_policy::{LifecycleStatus, LoadReason, ModelId, ModelIdsByName, model_id};

use super::agents::{LOADED_TOO_LATE, with_agents};
use super::*;
use crate::handle::ModelHandle;
use crate::manager::candidate::{CandidateContent, CandidateModel};
use crate::manager::defined_model::DefinedModel;
use crate::manager::driver::step_plan;
use crate::manager::effect::{Effect, ManagerEvent, StepEffects, VersionWorkKind};
use crate::manager::plan::{Plan, UnusedModels};
use crate::manager::worker::LoadWorker;
use crate::reaper::Reaper;
use crate::registry::Registry;

const SEEDS: u64 = 200;
const ORDERS_PER_SEED: usize = 25;
/// The maximum number of steps, far more than any seed needs.
const STEPS_MAX: usize = 5_000;

/// A `splitmix64` generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound).unwrap()).unwrap()
    }

    fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }
}

/// An order and its next action.
enum SimulatedOrder {
    Load { name: String, phase: LoadPhase },
    Unload { name: String, with_unused: bool, phase: UnloadPhase },
    Poll { candidates: Option<Vec<CandidateModel>> },
}

enum LoadPhase {
    LookUp,
    SetDesired(Vec<CandidateModel>),
    Wait(Vec<ModelId>),
}

enum UnloadPhase {
    WaitForLoad,
    Wait(Vec<ModelId>),
}

struct Simulation {
    random: Random,
    plan: Plan,
    registry: Arc<Registry>,
    worker: LoadWorker,
    world: World,
    has_namespaces: bool,
    /// The percentage of orders that are polls.
    polls: usize,
    effects: Vec<Effect>,
    orders: Vec<(usize, SimulatedOrder)>,
    replies: Vec<usize>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let has_namespaces = random.percent(30);
        let polls = [5, 60][random.below(2)];
        let registry = Arc::new(match has_namespaces {
            true => Registry::with_namespaces(),
            false => Registry::default(),
        });
        let log = LogSink::new(|_, _, _| {});
        let known = registry.clone();
        let on_destroyed = move |id: &str, version: i64, model: &_| {
            known.version_destroyed(id, version, model);
        };
        let reaper = Reaper::start(Box::new(on_destroyed), log.clone()).unwrap();
        let loader = VersionLoader::new(LoaderOptions {
            log: log.clone(),
            cache: None,
            hold_until_queued: 0,
            hold_until_backlogged: 0,
            parallel_creation: None,
            gpu_memory_check: None,
            host_policies: HostPolicies::default(),
            measurements: ModelMetricOptions::default(),
            rate_limit: RateLimiterMode::Off,
            ledger: Arc::default(),
        });
        let worker =
            LoadWorker { registry: registry.clone(), loader: loader.unwrap(), reaper, log };
        let plan =
            Plan::new(has_namespaces.then(ModelIdsByName::default), 2, ControlMode::Explicit);
        // Only the world's catalog and controls are used.
        let world = World::new();
        let (effects, orders, replies) = (Vec::new(), Vec::new(), Vec::new());
        let mut simulation = Self {
            random,
            plan,
            registry,
            worker,
            world,
            has_namespaces,
            polls,
            effects,
            orders,
            replies,
        };
        for name in NAMES {
            simulation.change_repository(name);
        }
        simulation
    }

    /// Changes or removes a model in the repository.
    fn change_repository(&mut self, name: &str) {
        let id = match (self.has_namespaces, self.random.below(2)) {
            (true, 0) => format!("/r::{name}"),
            (true, _) => format!("/s::{name}"),
            (false, _) => name.to_owned(),
        };
        if self.random.percent(25) {
            self.world.catalog.models.lock().unwrap().remove(&id);
            return;
        }
        let versions: &[i64] = [&[1][..], &[1, 2], &[2, 3], &[]][self.random.below(4)];
        let text = match name {
            "e" => ensemble_of("m"),
            "f" => ensemble_of(["e", "n", "f"][self.random.below(3)]),
            _ => config("tag", u32::try_from(1 + self.random.below(2)).unwrap()),
        };
        let text = if self.random.percent(40) { with_agents(&text) } else { text };
        let is_known = self.world.catalog.models.lock().unwrap().contains_key(&id);
        if is_known && self.random.percent(50) {
            self.world.put_config(&id, &text, versions);
        } else {
            self.world.put_text(&id, &text, versions);
        }
    }

    fn step<T>(&mut self, change: impl FnOnce(&mut Plan, &mut StepEffects) -> T) -> T {
        let before = self.registry.snapshot();
        let (result, effects, ended) = step_plan(&mut self.plan, &self.registry, change);
        drop(ended);
        for model in self.registry.snapshot().ready() {
            let is_known = |known: &Arc<ModelHandle>| Arc::ptr_eq(known, model);
            if !before.ready().any(is_known) {
                assert!(self.plan.is_desired(model.id()) && !self.plan.is_closed, "{model:?}");
            }
        }
        drop(before);
        self.effects.extend(effects);
        self.check_agreement();
        result
    }

    /// Checks that the registry has ready versions of exactly the models that serve according to
    /// the plan.
    fn check_agreement(&self) {
        let snapshot = self.registry.snapshot();
        for id in snapshot.ids().chain(self.plan.desired()) {
            let is_ready = snapshot.ready_of(id).next().is_some();
            let is_leaving = self
                .effects
                .iter()
                .any(|effect| matches!(effect, Effect::AnnounceUnload(one) if one == id));
            assert_eq!(is_ready, self.plan.is_serving(id) || is_leaving, "{id}");
        }
        for id in self.plan.desired() {
            let jobs = self.effects.iter().filter(|effect| effect.id() == id);
            let (mut stages, mut works, mut unloads) = (0, 0, 0);
            for effect in jobs {
                match effect {
                    Effect::Log(..) | Effect::ReportBlocked(..) => {}
                    Effect::Prepare(_) | Effect::Commit { .. } | Effect::Abandon { .. } => {
                        stages += 1;
                    }
                    Effect::WorkOnVersion(_) => works += 1,
                    Effect::AnnounceUnload(..) => unloads += 1,
                }
            }
            let is_busy = stages + works > 0;
            assert!(stages + works.min(1) + unloads <= 1, "{id} has one load at a time");
            assert_eq!(self.plan.is_loading(id), is_busy, "{id}");
        }
    }

    /// Performs one of the effects.
    fn perform_any(&mut self) {
        let index = self.random.below(self.effects.len());
        let effect = self.effects.swap_remove(index);
        let id = effect.id().clone();
        if let Some(event) = self.perform(effect) {
            self.step(|plan, step| plan.handle(event, step));
        }
        self.plan.end_effect(&id);
    }

    fn perform(&mut self, effect: Effect) -> Option<ManagerEvent> {
        let worker = &self.worker;
        Some(match effect {
            Effect::Log(..) | Effect::ReportBlocked(..) => return None,
            Effect::Prepare(order) => {
                ManagerEvent::Prepared(order.id.clone(), worker.prepare(&order))
            }
            Effect::WorkOnVersion(work) if self.plan.is_closed && !work.is_retry() => {
                ManagerEvent::VersionSkipped(
                    work.order.id.clone(),
                    work.version(),
                    Status::unavailable("Server exiting"),
                )
            }
            Effect::WorkOnVersion(work) if self.random.percent(20) => {
                let id = work.order.id.clone();
                let status = Status::internal("it is corrupt");
                match work.kind {
                    VersionWorkKind::Load { files, .. } => {
                        ManagerEvent::VersionLoaded(id, files, Err(status))
                    }
                    VersionWorkKind::AddInstances(model) => {
                        ManagerEvent::InstancesAdded(id, model.version(), Err(status))
                    }
                }
            }
            Effect::WorkOnVersion(work) => worker.work_on_version(work),
            Effect::Commit { order, lease, changes } => worker.commit(&order, lease, changes),
            Effect::Abandon { order, lease, changes, notice } => {
                worker.abandon(&order, lease, changes, notice)
            }
            Effect::AnnounceUnload(id) => {
                worker.announce_unload(&id, None);
                ManagerEvent::UnloadAnnounced(id)
            }
        })
    }

    /// Begins an order, unless one for the name is in progress.
    fn begin_order(&mut self) {
        let name = NAMES[self.random.below(NAMES.len())].to_owned();
        let order = match self.random.below(3) {
            _ if self.random.percent(self.polls) => SimulatedOrder::Poll { candidates: None },
            0 | 1 => SimulatedOrder::Load { name, phase: LoadPhase::LookUp },
            _ => {
                let with_unused = self.random.percent(50);
                SimulatedOrder::Unload { name, with_unused, phase: UnloadPhase::WaitForLoad }
            }
        };
        if let SimulatedOrder::Load { name, .. } | SimulatedOrder::Unload { name, .. } = &order {
            let name = ModelId::from(name.as_str());
            if self.plan.is_ordered(&name) {
                return;
            }
            self.plan.begin_order(&name);
        }
        self.orders.push((self.replies.len(), order));
        self.replies.push(0);
    }

    /// Advances one of the orders.
    fn advance_any(&mut self) {
        let index = self.random.below(self.orders.len());
        let (number, order) = self.orders.swap_remove(index);
        let name = match &order {
            SimulatedOrder::Load { name, .. } | SimulatedOrder::Unload { name, .. } => {
                Some(name.clone())
            }
            SimulatedOrder::Poll { .. } => None,
        };
        match self.advance(order) {
            Some(order) => self.orders.push((number, order)),
            None => {
                self.replies[number] += 1;
                name.iter().for_each(|name| self.plan.end_order(name));
            }
        }
    }

    /// Advances an order, and returns it unless it is done.
    fn advance(&mut self, order: SimulatedOrder) -> Option<SimulatedOrder> {
        match order {
            SimulatedOrder::Load { name, phase } => {
                let phase = self.advance_load(&name, phase)?;
                Some(SimulatedOrder::Load { name, phase })
            }
            SimulatedOrder::Unload { name, with_unused, phase } => {
                let phase = self.advance_unload(&name, with_unused, phase)?;
                Some(SimulatedOrder::Unload { name, with_unused, phase })
            }
            SimulatedOrder::Poll { candidates: None } => {
                let found = self.world.catalog.scan().models;
                Some(SimulatedOrder::Poll {
                    candidates: Some(self.candidates(found, LoadReason::Direct)),
                })
            }
            SimulatedOrder::Poll { candidates: Some(candidates) } => self.follow(candidates),
        }
    }

    fn advance_load(&mut self, name: &str, phase: LoadPhase) -> Option<LoadPhase> {
        match phase {
            LoadPhase::LookUp => {
                let (mut pending, mut known) = (vec![name.to_owned()], vec![name.to_owned()]);
                let mut candidates = Vec::new();
                while let Some(one) = pending.pop() {
                    let reason =
                        if one == name { LoadReason::Direct } else { LoadReason::Dependency };
                    let found = match self.world.catalog.find(&one, LoadParameters::default()) {
                        LookupResult::Models(found) => found,
                        LookupResult::Missing if one != name => continue,
                        LookupResult::Missing | LookupResult::Problem(_) => return None,
                    };
                    for candidate in self.candidates(found, reason) {
                        for needed in &candidate.dependencies {
                            if !known.contains(needed) {
                                known.push(needed.clone());
                                pending.push(needed.clone());
                            }
                        }
                        candidates.push(candidate);
                    }
                }
                Some(LoadPhase::SetDesired(candidates))
            }
            LoadPhase::SetDesired(candidates) => {
                let ids = candidates.iter().map(|candidate| candidate.id.clone()).collect();
                match self.step(|plan, step| plan.set_desired(candidates, step)) {
                    Ok(()) => Some(LoadPhase::Wait(ids)),
                    Err(_) => Some(LoadPhase::LookUp),
                }
            }
            LoadPhase::Wait(_) if self.plan.is_closed => None,
            LoadPhase::Wait(ids) => {
                let is_done = ids.iter().all(|id| self.plan.is_settled_with_related(id));
                (!is_done).then_some(LoadPhase::Wait(ids))
            }
        }
    }

    fn advance_unload(
        &mut self,
        name: &str,
        with_unused: bool,
        phase: UnloadPhase,
    ) -> Option<UnloadPhase> {
        match phase {
            _ if self.plan.is_closed => None,
            UnloadPhase::WaitForLoad => {
                let mut ids = self.plan.ids_of(name);
                if ids.iter().any(|id| self.plan.is_loading(id)) {
                    return Some(UnloadPhase::WaitForLoad);
                }
                let unused = if with_unused { UnusedModels::Remove } else { UnusedModels::Keep };
                let removed = self.step(|plan, step| {
                    let removed = plan.remove_desired(&ids, unused, step);
                    step.drop_block_reasons();
                    removed
                });
                ids.extend(removed);
                Some(UnloadPhase::Wait(ids))
            }
            UnloadPhase::Wait(ids) => {
                let is_done = ids.iter().all(|id| self.plan.is_out_of_service(id));
                (!is_done).then_some(UnloadPhase::Wait(ids))
            }
        }
    }

    fn follow(&mut self, candidates: Vec<CandidateModel>) -> Option<SimulatedOrder> {
        let present: Vec<ModelId> = candidates.iter().map(|one| one.id.clone()).collect();
        if self.step(|plan, step| plan.set_desired(candidates, step)).is_err() {
            return Some(SimulatedOrder::Poll { candidates: None });
        }
        self.step(|plan, step| {
            let absent: Vec<ModelId> =
                plan.desired().filter(|id| !present.contains(id)).cloned().collect();
            plan.remove_desired(&absent, UnusedModels::Keep, step);
        });
        None
    }

    fn candidates(&self, found: Vec<CatalogModel>, reason: LoadReason) -> Vec<CandidateModel> {
        let candidate = |found: CatalogModel| {
            let id = model_id(found.namespace.as_deref(), &found.name);
            let name = found.name.clone();
            match self.plan.current_dependencies(&id, &found) {
                Some(dependencies) => {
                    let content = CandidateContent::Unchanged(found.into());
                    CandidateModel { id, name, reason, dependencies, content }
                }
                None => {
                    let model = DefinedModel::define(found, &self.worker.reaper).unwrap();
                    CandidateModel::defined(id, name, reason, model)
                }
            }
        };
        found.into_iter().map(candidate).collect()
    }

    fn run(mut self) {
        let mut begun = 0;
        let closes_at = self.random.percent(30).then(|| self.random.below(ORDERS_PER_SEED));
        for _ in 0..STEPS_MAX {
            let can_begin = begun < ORDERS_PER_SEED;
            match self.random.below(4) {
                0 if can_begin => {
                    self.begin_order();
                    begun += 1;
                    if closes_at == Some(begun) {
                        self.close();
                    }
                }
                1 if can_begin => {
                    let name = NAMES[self.random.below(NAMES.len())];
                    self.change_repository(name);
                }
                2 if !self.orders.is_empty() => self.advance_any(),
                _ if !self.effects.is_empty() => self.perform_any(),
                _ if !can_begin && self.orders.is_empty() => return self.finish(),
                _ => {}
            }
        }
        panic!("orders or effects are left: {} and {}", self.orders.len(), self.effects.len());
    }

    fn close(&mut self) {
        self.plan.is_closed = true;
        drop(self.plan.take_unclaimed_leases());
    }

    fn finish(mut self) {
        assert!(self.replies.iter().all(|count| *count == 1), "{:?}", self.replies);
        assert!(self.plan.is_settled() || self.plan.is_closed);
        let snapshot = self.registry.snapshot();
        for id in self.plan.desired() {
            let is_ready = snapshot.ready_of(id).next().is_some();
            match self.plan.status(id) {
                LifecycleStatus::Serving => assert!(is_ready, "{id}"),
                LifecycleStatus::Blocked(_) => assert!(!is_ready, "{id}"),
                LifecycleStatus::Failed => {
                    assert!(self.plan.error(id).is_some() || self.plan.is_closed, "{id}");
                }
                LifecycleStatus::InProgress => assert!(self.plan.is_closed, "{id}"),
                LifecycleStatus::Absent => panic!("{id} is desired"),
            }
        }
        drop(snapshot);
        self.close();
        self.worker.withdraw_all();
        drop(self.plan);
        assert_eq!(self.worker.reaper.wait_idle(LONG), 0);
        assert_eq!(self.world.instances(), 0);
        check_agents(&self.world.controls.notices);
    }
}

const NAMES: [&str; 4] = ["m", "n", "e", "f"];

/// Checks that every agent asked was dropped once, and that the agents of loaded models were
/// notified of the end.
fn check_agents(told: &Mutex<Vec<String>>) {
    let told = told.lock().unwrap();
    let lines_of = |number: &str| {
        told.iter()
            .filter_map(|line| line.split_once(' '))
            .filter(|(one, _)| *one == number)
            .map(|(_, what)| if what.starts_with("gone") { "gone" } else { what })
            .collect::<Vec<_>>()
    };
    for line in told.iter() {
        let Some((number, "asked")) = line.split_once(' ') else { continue };
        let lines = lines_of(number);
        assert_eq!((lines[0], lines.last()), ("asked", Some(&"gone")), "{lines:?}");
        assert_eq!(lines.iter().filter(|what| **what == "gone").count(), 1, "{lines:?}");
        assert!(!lines.contains(&LOADED_TOO_LATE), "{lines:?}");
        if lines.contains(&"loaded") {
            assert!(lines.contains(&"unloading"), "{lines:?}");
        }
    }
}

#[test]
fn random_interleavings_keep_plan_and_registry_in_agreement() {
    for seed in 0..SEEDS {
        let result = std::panic::catch_unwind(|| Simulation::new(seed).run());
        assert!(result.is_ok(), "seed {seed}");
    }
}

/// Runs random orders on manager and client threads, so no seed determines the interleaving.
#[test]
fn random_orders_of_several_threads_all_return() {
    const THREADS: u64 = 4;
    const ORDERS_PER_THREAD: usize = 30;
    let world = World::new();
    world.put_text("e", &with_agents(&ensemble_of("m")), &[1]);
    world.put_text("f", &ensemble_of("e"), &[1]);
    world.put("m", "one", &[1, 2]);
    world.put("n", "one", &[1]);
    let returned = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for seed in 0..THREADS {
            let (world, returned) = (&world, &returned);
            scope.spawn(move || {
                let mut random = Random(seed);
                for _ in 0..ORDERS_PER_THREAD {
                    let name = NAMES[random.below(NAMES.len())];
                    match random.below(5) {
                        0 => world.put("m", ["one", "corrupt2"][random.below(2)], &[1, 2]),
                        1 => world.put_text("n", &config("one", 2), &[1]),
                        2 => world.server.unload_model(name, random.percent(50)).unwrap(),
                        _ => drop(world.load(name)),
                    }
                    returned.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(returned.load(Ordering::SeqCst), 4 * ORDERS_PER_THREAD);
    world.put("m", "two", &[1]);
    for name in NAMES {
        world.load(name).unwrap();
        assert_eq!(world.server.model_ready(name, None), Ok(true), "{name}");
    }
    NAMES.iter().for_each(|name| world.unload(name));
    until(|| world.instances() == 0 && world.server.ready() == Ok(true));
    // The last agents are dropped after their model.
    let count = world.controls.agent_count.load(Ordering::SeqCst);
    let gone = || {
        let notices = world.controls.notices.lock().unwrap();
        notices.iter().filter(|line| line.contains("gone")).count()
    };
    until(|| gone() == count);
    check_agents(&world.controls.notices);
}
