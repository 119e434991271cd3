//! The element order produced by `std::sort` of libstdc++, including the order of equal elements.
//!
//! Triton sorts classes with it, so the order of equal values is part of its responses. The sort is
//! a quicksort with a median-of-three pivot that leaves runs of up to 16 elements, a heap sort for
//! parts that are divided too often, and a final insertion sort of the whole sequence. Each step
//! must swap the same elements as the library does.

#![expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "places are below the number of elements, which memory bounds"
)]

/// The maximum number of elements that are left to the insertion sort.
const RUN_MAX: usize = 16;

/// Sorts elements. For unordered values such as NaN, `is_before` is not an order, but the result
/// still matches the library's: such values stop every search that reaches them.
pub(super) fn sort<T: Copy>(items: &mut [T], is_before: impl Fn(&T, &T) -> bool) {
    let Some(log2) = items.len().checked_ilog2() else { return };
    divide(items, 2 * log2, &is_before);
    insert_all(items, &is_before);
}

/// Divides elements until only runs are left. Afterwards, no element belongs before an earlier run.
fn divide<T: Copy>(mut items: &mut [T], mut depth: u32, is_before: &impl Fn(&T, &T) -> bool) {
    while items.len() > RUN_MAX {
        if depth == 0 {
            return heap_sort(items, is_before);
        }
        depth -= 1;
        let cut = partition(items, is_before);
        let (first, second) = items.split_at_mut(cut);
        divide(second, depth, is_before);
        items = first;
    }
}

/// Moves the median of three elements to the front, followed by the elements that belong before it.
/// Returns the start of the rest.
fn partition<T: Copy>(items: &mut [T], is_before: &impl Fn(&T, &T) -> bool) -> usize {
    let median = median(items, [1, items.len() / 2, items.len() - 1], is_before);
    items.swap(0, median);
    let pivot = items[0];
    let (mut low, mut high) = (1, items.len());
    loop {
        // The library does not check for the end, because the median of three bounds both searches.
        while low < high && is_before(&items[low], &pivot) {
            low += 1;
        }
        high -= 1;
        while high > 0 && is_before(&pivot, &items[high]) {
            high -= 1;
        }
        if low >= high {
            return low;
        }
        items.swap(low, high);
        low += 1;
    }
}

fn median<T>(items: &[T], [a, b, c]: [usize; 3], is_before: &impl Fn(&T, &T) -> bool) -> usize {
    let is_before = |one: usize, other: usize| is_before(&items[one], &items[other]);
    if is_before(a, b) {
        match (is_before(b, c), is_before(a, c)) {
            (true, _) => b,
            (false, true) => c,
            (false, false) => a,
        }
    } else {
        match (is_before(a, c), is_before(b, c)) {
            (true, _) => a,
            (false, true) => c,
            (false, false) => b,
        }
    }
}

fn insert_all<T: Copy>(items: &mut [T], is_before: &impl Fn(&T, &T) -> bool) {
    for place in 1..items.len() {
        let item = items[place];
        if place < RUN_MAX && is_before(&item, &items[0]) {
            items[..=place].rotate_right(1);
            continue;
        }
        // The library doesn't check for the beginning: after the first run, there is always an
        // element that belongs before this one.
        let mut hole = place;
        while hole > 0 && is_before(&item, &items[hole - 1]) {
            items[hole] = items[hole - 1];
            hole -= 1;
        }
        items[hole] = item;
    }
}

fn heap_sort<T: Copy>(items: &mut [T], is_before: &impl Fn(&T, &T) -> bool) {
    for root in (0..items.len() / 2).rev() {
        let item = items[root];
        sift(items, root, item, is_before);
    }
    for end in (1..items.len()).rev() {
        let item = items[end];
        items[end] = items[0];
        sift(&mut items[..end], 0, item, is_before);
    }
}

/// Fills the hole at `root` of a heap with `item`: the hole sinks to the end, and the item rises
/// from there.
fn sift<T: Copy>(heap: &mut [T], root: usize, item: T, is_before: &impl Fn(&T, &T) -> bool) {
    let mut hole = root;
    while 2 * hole + 2 < heap.len() {
        let right = 2 * hole + 2;
        let child = if is_before(&heap[right], &heap[right - 1]) { right - 1 } else { right };
        heap[hole] = heap[child];
        hole = child;
    }
    if 2 * hole + 2 == heap.len() {
        heap[hole] = heap[2 * hole + 1];
        hole = 2 * hole + 1;
    }
    while hole > root && is_before(&heap[(hole - 1) / 2], &item) {
        heap[hole] = heap[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    heap[hole] = item;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FNV-1a over element orders, given as indices. The program that generated the expected
    /// numbers with `std::sort` of GCC 12 computes the same hash.
    struct Orders(u64);

    impl Orders {
        fn new() -> Self {
            Self(0xcbf2_9ce4_8422_2325)
        }

        fn add(&mut self, values: &[u32], sort: impl Fn(&mut [(u32, usize)])) {
            let mut ranked: Vec<(u32, usize)> = values.iter().copied().zip(0..).collect();
            sort(&mut ranked);
            assert!(ranked.is_sorted_by(|a, b| a.0 >= b.0), "{values:?}");
            self.note(&ranked);
        }

        fn note(&mut self, ranked: &[(u32, usize)]) {
            for (_, index) in ranked {
                self.0 = (self.0 ^ *index as u64).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }

    fn is_before(a: &(u32, usize), b: &(u32, usize)) -> bool {
        a.0 > b.0
    }

    /// Generates random values, first of few kinds and then of more.
    fn random_values(lengths: u32) -> impl Iterator<Item = Vec<u32>> {
        let mut state = 1_u32;
        let mut next = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        let sizes = [1, 2, 3, 10, 1000].into_iter();
        let sizes = sizes.flat_map(move |kinds| (0..lengths).map(move |length| (kinds, length)));
        sizes.map(move |(kinds, length)| (0..length).map(|_| next() % kinds).collect())
    }

    #[test]
    fn random_values_are_sorted_as_in_cpp() {
        let mut orders = Orders::new();
        random_values(400).for_each(|values| orders.add(&values, |all| sort(all, is_before)));
        assert_eq!(orders.0, 3_030_493_553_189_679_119);
    }

    #[test]
    fn what_has_no_order_is_left_as_in_cpp() {
        let mut orders = Orders::new();
        for values in random_values(200) {
            // A quarter of the values behave like NaN: they are before no other value, and no value
            // is before them.
            let is_number = |value: u32| !value.is_multiple_of(4);
            let is_before =
                |a: &(u32, usize), b: &(u32, usize)| is_number(a.0) && is_number(b.0) && a.0 > b.0;
            let mut ranked: Vec<(u32, usize)> = values.into_iter().zip(0..).collect();
            sort(&mut ranked, is_before);
            orders.note(&ranked);
        }
        assert_eq!(orders.0, 13_805_390_558_694_448_073);
    }

    #[test]
    fn a_heap_is_sorted_as_in_cpp() {
        let mut orders = Orders::new();
        random_values(100).for_each(|values| orders.add(&values, |all| heap_sort(all, &is_before)));
        assert_eq!(orders.0, 10_820_110_278_454_872_411);
    }

    #[test]
    fn patterns_are_sorted_as_in_cpp() {
        let mut orders = Orders::new();
        for count in [40_u32, 1000, 4096] {
            let half = count / 2;
            // The second half of the last pattern is sorted, and the first interleaves with it, so
            // the median of three is small again and again.
            let first = |i| count - if i % 2 == 0 { i + 1 } else { half + i - half % 2 } / 2;
            let patterns: [Vec<u32>; 4] = [
                (0..count).map(|i| i / 3).collect(),
                (0..count).map(|i| (count - i) / 3).collect(),
                (0..count).map(|i| if i < half { i } else { count - i }).collect(),
                (0..half).map(first).chain((1..=half).map(|i| count - i)).collect(),
            ];
            patterns.iter().for_each(|values| orders.add(values, |all| sort(all, is_before)));
        }
        assert_eq!(orders.0, 8_385_763_566_260_446_343);
    }
}
