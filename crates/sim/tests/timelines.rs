//! The worked examples in Triton's documentation, event by event, with the resulting batches. Each
//! step is also compared with the naive scheduler and checked as in a simulated run.

mod player;

use galatea_policy::{SchedulingMode, SchedulingSpec, SequenceBatcherSpec, SequenceStrategy};

use self::player::Player;

fn spec(max_batch_size: u32, strategy: SequenceStrategy) -> SchedulingSpec {
    let settings =
        SequenceBatcherSpec { strategy, max_sequence_idle_ns: 5_000_000, iterative: false };
    SchedulingSpec {
        max_batch_size,
        mode: SchedulingMode::Sequence(settings),
        hold_until_queued: 0,
        hold_until_backlogged: 0,
    }
}

fn direct(max_queue_delay_ns: u64, minimum_ready_slots: u32) -> SchedulingSpec {
    spec(2, SequenceStrategy::Direct { max_queue_delay_ns, minimum_ready_slots })
}

fn oldest(max_candidate_sequences: u32, max_queue_delay_ns: u64) -> SchedulingSpec {
    let preferred_batch_sizes = vec![2];
    let strategy = SequenceStrategy::Oldest {
        max_candidate_sequences,
        preferred_batch_sizes,
        max_queue_delay_ns,
    };
    spec(2, strategy)
}

/// Two instances with two slots each, six sequences, and their first requests in order. The test
/// hook holds all requests until the last one has arrived, so that the timeline matches the
/// picture.
///
/// The picture shows sequence 1 in the second slot of the first instance. Both Triton's scheduler
/// and this one assign the lowest slot of all instances first, so sequences 1 and 2 are swapped.
/// The times at which slots become free, and their next sequences, are the same.
#[test]
fn six_sequences_on_two_instances_of_two_slots() {
    let held = SchedulingSpec { hold_until_queued: 25, hold_until_backlogged: 8, ..direct(0, 0) };
    let mut player = Player::new(held);
    player.play(
        "0 add 0 ->
         0 add 1 ->
         1 send 0.1^ 1.1^ 2.1^ 3.1^ 4.1^ 5.1^ ->
         2 send 0.2 1.2 2.2 3.2 4.2 5.2 ->
         3 send 0.3 1.3 2.3 3.3$ 4.3 5.3$ -> closed 3, closed 5
         4 send 0.4 1.4 2.4 4.4 ->
         5 send 0.5 1.5$ 2.5 4.5$ -> closed 1, closed 4
         6 send 0.6$ 2.6 2.7 2.8 2.9 2.10 -> closed 0
         7 send 2.11$ -> closed 2, 0: 0.1^ 2.1^, 1: 1.1^ 3.1^",
    );
    player.play(
        "20 finish 0 -> 0: 0.2 2.2
         20 finish 1 -> 1: 1.2 3.2
         30 finish 0 -> 0: 0.3 2.3
         30 finish 1 -> 1: 1.3 3.3$, ended 3
         40 finish 0 -> 0: 0.4 2.4
         40 finish 1 -> 1: 1.4 4.1^
         50 finish 0 -> 0: 0.5 2.5
         50 finish 1 -> 1: 1.5$ 4.2, ended 1
         60 finish 0 -> 0: 0.6$ 2.6, ended 0
         60 finish 1 -> 1: 5.1^ 4.3
         70 finish 0 -> 0: - 2.7
         70 finish 1 -> 1: 5.2 4.4
         80 finish 0 -> 0: - 2.8
         80 finish 1 -> 1: 5.3$ 4.5$, ended 5, ended 4
         90 finish 0 -> 0: - 2.9
         90 finish 1 ->
         100 finish 0 -> 0: - 2.10
         110 finish 0 -> 0: - 2.11$, ended 2
         120 finish 0 ->",
    );
}

/// One instance with two slots. In the documentation, two requests arrive so close together that
/// one batch has both; here a delay has this effect. The documented tensors always have both slots;
/// here a batch ends with the highest ready slot, so the first one is a row shorter.
#[test]
// row: SEQ-08
fn start_and_ready_of_two_slots() {
    let mut player = Player::new(direct(5, 2));
    player.play("0 add 0 ->");
    player.tensors(
        "10 send A.0^  ->
         15 tick       -> START 1 0, READY 1 0
         25 finish 0   ->
         40 send A.1   ->
         41 send B.0^  -> START 0 1, READY 1 1
         45 send A.2   ->
         46 send B.1   ->
         51 finish 0   -> START 0 0, READY 1 1
         55 send B.2   ->
         61 finish 0   -> START 0 0, READY 0 1",
    );
}

/// One instance, four candidates and batches of two. Requests of all sequences arrive at the same
/// rate, A's just before B's and so on.
#[test]
fn the_oldest_requests_of_four_candidates() {
    let mut player = Player::new(oldest(4, 5));
    player.play(
        "0 add 0 ->
         1 send A.1^ ->
         2 send B.1^ -> 0: A.1^ B.1^
         3 send C.1^$ -> closed C
         4 send D.1^ ->
         8 finish 0 -> 0: C.1^$ D.1^, ended C
         11 send A.2 ->
         12 send B.2$ -> closed B
         14 send D.2 ->
         18 finish 0 -> 0: A.2 B.2$, ended B
         21 send A.3$ -> closed A
         24 send D.3 ->
         28 finish 0 -> 0: D.2 A.3$, ended A
         34 send D.4$ -> closed D
         38 finish 0 ->
         43 tick -> 0: D.3
         48 finish 0 ->
         53 tick -> 0: D.4$, ended D",
    );
}

/// A sequence without a free candidate slot waits, along with its later requests, until a candidate
/// ends; then it gets the slot immediately.
#[test]
// row: SEQ-29
fn a_fifth_sequence_waits_for_a_candidate_to_end() {
    let mut player = Player::new(oldest(4, 0));
    player.play(
        "0 add 0 ->
         1 send A.1^ -> 0: A.1^
         2 send B.1^ C.1^ D.1^ E.1^ F.1^ ->
         3 send E.2$ -> closed E
         4 finish 0 -> 0: B.1^ C.1^
         5 send C.2$ -> closed C
         6 finish 0 -> 0: D.1^ C.2$, ended C
         7 finish 0 -> 0: E.1^
         8 finish 0 -> 0: E.2$, ended E
         9 finish 0 -> 0: F.1^",
    );
}

/// A sequence without END loses its slot to the backlog when its idle time is over, and its next
/// request needs a new START.
#[test]
fn an_idle_sequence_frees_its_slot() {
    let mut player = Player::new(direct(0, 0));
    player.play(
        "0 add 0 ->
         0 send A.1^ -> 0: A.1^
         1 send B.1^ C.1^ ->
         10 finish 0 -> 0: - B.1^
         4000000 send B.2 ->
         4000001 finish 0 -> 0: - B.2
         4999999 tick ->
         5000000 tick -> closed A, ended A
         5000020 send A.2 -> fail A.2 MissingStart, closed A, ended A
         5000030 finish 0 -> 0: C.1^",
    );
}

/// Iterations of a request share batches with requests that have arrived in the meantime, and a
/// finished request frees its slot immediately.
#[test]
fn iterations_are_batched_continuously() {
    let mut iterative = oldest(2, 0);
    if let SchedulingMode::Sequence(settings) = &mut iterative.mode {
        settings.iterative = true;
    }
    let mut player = Player::new(iterative);
    player.play(
        "0 add 0 ->
         1 send A^ -> closed A, 0: A^
         2 send B^ C^ -> closed B, closed C
         3 again A -> 
         3 free 0 -> 0: B^ A
         4 done A -> ended A
         4 again B ->
         4 free 0 -> 0: C^ B
         5 again C ->
         5 done B -> ended B
         5 free 0 -> 0: C
         6 done C -> ended C
         6 free 0 ->",
    );
}
