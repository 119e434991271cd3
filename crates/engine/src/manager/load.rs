//! A load: one attempt to bring a desired model into service.
//!
//! [`Load`] represents steps 4 to 8 of a reload ([`manager`](super)) as a value. It decides which
//! transition is legal next, and knows nothing about threads, locks or backends. The
//! [`Plan`](super::plan::Plan) owns the loads in progress, at most one per model, and turns their
//! transitions into effects. An unchanged version keeps its model, its queue and its counters.

use std::collections::BTreeMap;

use galatea_infer::Status;

/// The states of a load. Each method of [`Load`] is one transition, and panics if called in any
/// state other than its own.
///
/// ```text
/// Preparing ──start──► Loading ──commit──► Committing ──publish──► (serves)
///     │                   │                    │
///     └──────abandon──────┴──────abandon───────┘
///                         ▼
///                     Abandoning ──end──► (failed or cancelled)
/// ```
///
/// - Preparing: the load waits for a thread, or is determining the versions to load.
/// - Loading: versions are being loaded, and each has its own state.
/// - Committing: all versions are ready; repository agents are being notified.
/// - Abandoning: nothing will serve; instance changes are being undone and agents notified.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum LoadState {
    Preparing,
    Loading,
    Committing,
    Abandoning,
}

/// The states of a version within a load.
///
/// ```text
/// Loading{1} ──► Loading{2} ──► … ──► Loaded or Failed
/// Adding ──► Kept or KeptFailed
/// ```
#[derive(Debug)]
pub(super) enum VersionState<M, C> {
    /// The version is being loaded; `attempt` counts from 1.
    Loading { attempt: u32 },
    /// The version is ready.
    Loaded(M),
    /// The last attempt failed.
    Failed(Status),
    /// The version stays in service. Missing instances are being added.
    Adding,
    /// The version stays in service, possibly with a change to its instances.
    Kept(Option<C>),
    /// The version stays in service, but missing instances could not be added.
    KeptFailed(Status),
}

/// A load in progress. `M` is a loaded version, and `C` is a change to a version's instances.
#[derive(Debug)]
pub(super) struct Load<M, C> {
    state: LoadState,
    versions: BTreeMap<i64, VersionState<M, C>>,
}

/// The next step for a version after an attempt to load it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum AttemptResult {
    /// The version is loaded, or has failed permanently.
    Ended,
    /// The version will be loaded again, with this attempt number.
    Retry(u32),
}

/// The versions that a model serves with after its load.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PublishedVersions<M> {
    pub(super) loaded: Vec<M>,
    pub(super) kept: Vec<i64>,
}

impl<M, C> Load<M, C> {
    pub(super) const fn new() -> Self {
        Self { state: LoadState::Preparing, versions: BTreeMap::new() }
    }

    /// Starts with these versions, each of which is `Loading`, `Adding` or `Kept`.
    pub(super) fn start(&mut self, versions: BTreeMap<i64, VersionState<M, C>>) {
        self.transition(LoadState::Preparing, LoadState::Loading);
        self.versions = versions;
    }

    /// Ends an attempt to load a version. A failed attempt is repeated, up to `attempts_max`
    /// attempts in total.
    pub(super) fn end_attempt(
        &mut self,
        version: i64,
        result: Result<M, Status>,
        attempts_max: u32,
    ) -> AttemptResult {
        self.expect(LoadState::Loading);
        let state = self.versions.get_mut(&version);
        let Some(VersionState::Loading { attempt }) = state else {
            panic!("version {version} is not being loaded")
        };
        if result.is_err() && *attempt < attempts_max {
            *attempt += 1;
            return AttemptResult::Retry(*attempt);
        }
        let state = match result {
            Ok(model) => VersionState::Loaded(model),
            Err(status) => VersionState::Failed(status),
        };
        self.versions.insert(version, state);
        AttemptResult::Ended
    }

    /// Finishes adding instances to a version, successfully or not.
    pub(super) fn end_adding(&mut self, version: i64, result: Result<C, Status>) {
        self.expect(LoadState::Loading);
        let state = self.versions.get(&version);
        assert!(matches!(state, Some(VersionState::Adding)), "version {version} gets no instances");
        let state = match result {
            Ok(change) => VersionState::Kept(Some(change)),
            Err(status) => VersionState::KeptFailed(status),
        };
        self.versions.insert(version, state);
    }

    /// Skips a version for this reason; the version counts as failed.
    pub(super) fn skip(&mut self, version: i64, status: Status) {
        self.expect(LoadState::Loading);
        let state = match self.versions.get(&version) {
            Some(VersionState::Loading { .. }) => VersionState::Failed(status),
            Some(VersionState::Adding) => VersionState::KeptFailed(status),
            state => panic!("version {version} is not in progress: {}", state.is_some()),
        };
        self.versions.insert(version, state);
    }

    /// Returns true if no version is being worked on.
    pub(super) fn is_complete(&self) -> bool {
        self.expect(LoadState::Loading);
        let is_pending = |state: &VersionState<M, C>| {
            matches!(state, VersionState::Loading { .. } | VersionState::Adding)
        };
        !self.versions.values().any(is_pending)
    }

    /// The failed versions, in ascending order.
    pub(super) fn failures(&self) -> impl Iterator<Item = (i64, &Status)> {
        self.versions.iter().filter_map(|(version, state)| match state {
            VersionState::Failed(status) | VersionState::KeptFailed(status) => {
                Some((*version, status))
            }
            VersionState::Loading { .. }
            | VersionState::Loaded(_)
            | VersionState::Adding
            | VersionState::Kept(_) => None,
        })
    }

    /// Commits the load: all versions are ready and should serve. Returns the instance changes that
    /// the caller must apply.
    pub(super) fn commit(&mut self) -> Vec<C> {
        assert!(self.is_complete(), "a version is being worked on");
        assert_eq!(self.failures().count(), 0, "a version failed");
        self.transition(LoadState::Loading, LoadState::Committing);
        self.take_changes()
    }

    /// Abandons the load: nothing should serve. Returns the uncommitted instance changes, which the
    /// caller must undo.
    pub(super) fn abandon(&mut self) -> Vec<C> {
        assert!(self.state != LoadState::Loading || self.is_complete(), "a version is in progress");
        assert_ne!(self.state, LoadState::Abandoning, "the load is abandoned already");
        self.state = LoadState::Abandoning;
        self.take_changes()
    }

    /// Publishes the versions, which serve from now on.
    pub(super) fn publish(self) -> PublishedVersions<M> {
        self.expect(LoadState::Committing);
        let mut published = PublishedVersions { loaded: Vec::new(), kept: Vec::new() };
        for (version, state) in self.versions {
            match state {
                VersionState::Loaded(model) => published.loaded.push(model),
                VersionState::Kept(_) => published.kept.push(version),
                VersionState::Loading { .. }
                | VersionState::Failed(_)
                | VersionState::Adding
                | VersionState::KeptFailed(_) => panic!("version {version} is not ready"),
            }
        }
        published
    }

    /// Ends the load without success. Returns the versions that were tried, in ascending order,
    /// with errors for those that failed.
    pub(super) fn end_unsuccessfully(self) -> Vec<(i64, Option<Status>)> {
        self.expect(LoadState::Abandoning);
        let tried = |(version, state)| match state {
            VersionState::Loaded(_) => Some((version, None)),
            VersionState::Failed(status) => Some((version, Some(status))),
            VersionState::Kept(_) | VersionState::KeptFailed(_) => None,
            VersionState::Loading { .. } | VersionState::Adding => {
                panic!("version {version} is in progress")
            }
        };
        self.versions.into_iter().filter_map(tried).collect()
    }

    fn take_changes(&mut self) -> Vec<C> {
        let changes = self.versions.values_mut().filter_map(|state| match state {
            VersionState::Kept(change) => change.take(),
            VersionState::Loading { .. }
            | VersionState::Loaded(_)
            | VersionState::Failed(_)
            | VersionState::Adding
            | VersionState::KeptFailed(_) => None,
        });
        changes.collect()
    }

    fn transition(&mut self, from: LoadState, to: LoadState) {
        self.expect(from);
        self.state = to;
    }

    #[track_caller]
    fn expect(&self, state: LoadState) {
        assert_eq!(self.state, state, "the state of a load");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type TestLoad = Load<&'static str, &'static str>;

    const LOADING: VersionState<&str, &str> = VersionState::Loading { attempt: 1 };

    fn started<const N: usize>(
        versions: [(i64, VersionState<&'static str, &'static str>); N],
    ) -> TestLoad {
        let mut load = TestLoad::new();
        load.start(versions.into());
        load
    }

    fn failure() -> Status {
        Status::internal("it is corrupt")
    }

    #[test]
    fn versions_are_published_together_once_all_are_ready() {
        let mut load = started([
            (1, LOADING),
            (2, LOADING),
            (3, VersionState::Adding),
            (4, VersionState::Kept(Some("fewer"))),
        ]);
        assert_eq!(load.end_attempt(2, Ok("two"), 1), AttemptResult::Ended);
        load.end_adding(3, Ok("more"));
        assert!(!load.is_complete());
        assert_eq!(load.end_attempt(1, Ok("one"), 1), AttemptResult::Ended);
        assert!(load.is_complete());
        assert_eq!(load.commit(), ["more", "fewer"]);
        let expected = PublishedVersions { loaded: vec!["one", "two"], kept: vec![3, 4] };
        assert_eq!(load.publish(), expected);
    }

    #[test]
    fn a_version_is_tried_a_limited_number_of_times() {
        let mut load = started([(1, LOADING)]);
        assert_eq!(load.end_attempt(1, Err(failure()), 3), AttemptResult::Retry(2));
        assert_eq!(load.end_attempt(1, Err(failure()), 3), AttemptResult::Retry(3));
        assert!(!load.is_complete());
        assert_eq!(load.end_attempt(1, Err(failure()), 3), AttemptResult::Ended);
        assert_eq!(load.failures().map(|(version, _)| version).collect::<Vec<_>>(), [1]);
        let mut load = started([(1, LOADING)]);
        assert_eq!(load.end_attempt(1, Err(failure()), 2), AttemptResult::Retry(2));
        assert_eq!(load.end_attempt(1, Ok("one"), 2), AttemptResult::Ended);
        assert_eq!(load.failures().count(), 0);
    }

    #[test]
    fn one_failure_abandons_all_versions() {
        let mut load = started([
            (1, LOADING),
            (2, LOADING),
            (3, VersionState::Adding),
            (4, VersionState::Adding),
        ]);
        load.end_attempt(1, Ok("one"), 1);
        load.end_attempt(2, Err(failure()), 1);
        load.end_adding(3, Ok("more"));
        load.end_adding(4, Err(failure()));
        assert_eq!(load.failures().map(|(version, _)| version).collect::<Vec<_>>(), [2, 4]);
        assert_eq!(load.abandon(), ["more"]);
        assert_eq!(load.end_unsuccessfully(), [(1, None), (2, Some(failure()))]);
    }

    #[test]
    fn a_load_may_be_abandoned_before_it_starts_and_while_it_commits() {
        let mut load = TestLoad::new();
        assert_eq!(load.abandon(), [""; 0]);
        assert_eq!(load.end_unsuccessfully(), []);
        let mut load = started([(1, VersionState::Kept(Some("fewer")))]);
        assert_eq!(load.commit(), ["fewer"]);
        // The change has already been applied.
        assert_eq!(load.abandon(), [""; 0]);
        assert_eq!(load.end_unsuccessfully(), []);
    }

    /// Covers all orders in which the parts of a load may end, with all possible results.
    #[test]
    fn the_results_of_versions_commute() {
        let results: [[bool; 3]; 8] =
            std::array::from_fn(|bits| std::array::from_fn(|part| bits >> part & 1 == 1));
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        for good in results {
            for order in orders {
                let mut load = started([(0, LOADING), (1, LOADING), (2, VersionState::Adding)]);
                for part in order {
                    assert!(!load.is_complete());
                    let version = i64::try_from(part).unwrap();
                    match part {
                        2 => load.end_adding(2, good[2].then_some("more").ok_or(failure())),
                        _ => {
                            let result = good[part].then_some("model").ok_or(failure());
                            load.end_attempt(version, result, 1);
                        }
                    }
                }
                assert!(load.is_complete());
                let failed = good.iter().filter(|good| !**good).count();
                assert_eq!(load.failures().count(), failed);
                let changes = if failed == 0 { load.commit() } else { load.abandon() };
                assert_eq!(changes.len(), usize::from(good[2]));
            }
        }
    }

    #[test]
    fn a_skipped_version_is_not_tried_again() {
        let mut load = started([(1, LOADING), (2, VersionState::Adding)]);
        load.skip(1, failure());
        load.skip(2, failure());
        assert_eq!(load.failures().count(), 2);
        load.abandon();
        assert_eq!(load.end_unsuccessfully(), [(1, Some(failure()))]);
    }

    fn panics(action: impl FnOnce() + std::panic::UnwindSafe) -> bool {
        std::panic::catch_unwind(action).is_err()
    }

    #[test]
    fn other_transitions_are_refused() {
        assert!(panics(|| drop(TestLoad::new().commit())));
        assert!(panics(|| drop(TestLoad::new().publish())));
        assert!(panics(|| drop(TestLoad::new().end_unsuccessfully())));
        assert!(panics(|| started([]).start([].into())));
        assert!(panics(|| drop(started([(1, LOADING)]).commit())));
        assert!(panics(|| drop(started([(1, LOADING)]).abandon())));
        assert!(panics(|| {
            started([(1, VersionState::Adding)]).end_attempt(1, Ok("one"), 1);
        }));
        assert!(panics(|| started([(1, LOADING)]).end_adding(1, Ok("more"))));
        assert!(panics(|| {
            let mut load = started([(1, LOADING)]);
            load.end_attempt(1, Err(failure()), 1);
            load.commit();
        }));
        assert!(panics(|| {
            let mut load = TestLoad::new();
            load.abandon();
            load.abandon();
        }));
    }
}
