//! Circles in a graph, found in steps that grow with its size, however long
//! they are: a configuration is written by whoever writes models.

use std::collections::{BTreeMap, BTreeSet};

/// What each node needs; nodes are numbers from zero.
pub(super) struct Needs(pub(super) Vec<Vec<usize>>);

impl Needs {
    /// A circle for each node that is the first of some, in the nodes' order and at
    /// most so many: from what needs to what is needed, without the return.
    pub(super) fn circles(&self, circles_max: usize) -> Vec<Vec<usize>> {
        let mut knots = BTreeMap::new();
        self.add_knots((0..self.0.len()).collect(), &mut knots);
        let mut circles = Vec::new();
        while circles.len() < circles_max
            && let Some((first, mut knot)) = knots.pop_first()
        {
            circles.push(self.circle(first, &knot));
            // What else is in the knot may go round without its first node.
            knot.remove(&first);
            self.add_knots(knot, &mut knots);
        }
        circles
    }

    /// What a node needs among others.
    fn among<'a>(
        &'a self,
        node: usize,
        members: &'a BTreeSet<usize>,
    ) -> impl Iterator<Item = usize> + 'a {
        let needed = self.0.get(node).into_iter().flatten().copied();
        needed.filter(move |needed| members.contains(needed))
    }

    /// The members that need each other, as sets by their first node. These are
    /// the strongly connected components, by Kosaraju's algorithm.
    fn add_knots(&self, members: BTreeSet<usize>, knots: &mut BTreeMap<usize, BTreeSet<usize>>) {
        let mut needed_by: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for &node in &members {
            for needed in self.among(node, &members) {
                needed_by.entry(needed).or_default().push(node);
            }
        }
        let mut left = members;
        for start in self.finished_last(&left) {
            let mut knot = BTreeSet::new();
            let mut next = vec![start];
            while let Some(node) = next.pop() {
                if left.remove(&node) {
                    knot.insert(node);
                    next.extend(needed_by.get(&node).into_iter().flatten());
                }
            }
            let is_alone = knot.len() == 1 && self.among(start, &knot).next().is_none();
            if let Some(&first) = knot.first()
                && !is_alone
            {
                knots.insert(first, knot);
            }
        }
    }

    /// The members, each behind those from which it can't be reached but that it
    /// can reach.
    fn finished_last(&self, members: &BTreeSet<usize>) -> Vec<usize> {
        let mut seen = BTreeSet::new();
        let mut finished = Vec::with_capacity(members.len());
        for &start in members {
            if !seen.insert(start) {
                continue;
            }
            let mut path = vec![(start, self.among(start, members))];
            while let Some((node, rest)) = path.last_mut() {
                match rest.find(|needed| seen.insert(*needed)) {
                    Some(needed) => path.push((needed, self.among(needed, members))),
                    None => {
                        finished.push(*node);
                        path.pop();
                    }
                }
            }
        }
        finished.reverse();
        finished
    }

    /// The way from a node back to itself among those that need each other.
    fn circle(&self, start: usize, knot: &BTreeSet<usize>) -> Vec<usize> {
        let mut seen = BTreeSet::new();
        let mut path = vec![(start, self.among(start, knot))];
        while let Some((_, rest)) = path.last_mut() {
            match rest.find(|needed| *needed == start || seen.insert(*needed)) {
                Some(needed) if needed == start => break,
                Some(needed) => path.push((needed, self.among(needed, knot))),
                None => drop(path.pop()),
            }
        }
        path.into_iter().map(|(node, _)| node).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Needs;

    fn check(needs: &[&[usize]], circles: &[&[usize]]) {
        let needs = Needs(needs.iter().map(|needed| needed.to_vec()).collect());
        assert_eq!(needs.circles(usize::MAX), circles);
    }

    #[test]
    fn each_circle_begins_with_its_first_node() {
        check(&[], &[]);
        check(&[&[], &[0], &[1]], &[]);
        check(&[&[0]], &[&[0]]);
        check(&[&[2], &[0], &[1]], &[&[0, 2, 1]]);
        // Two that share a node, and one that others only wait for.
        check(&[&[1], &[0, 2], &[1], &[4], &[3, 0]], &[&[0, 1], &[1, 2], &[3, 4]]);
        // A way that leads nowhere, and one that leads past the start.
        check(&[&[1, 2], &[3], &[4], &[], &[3, 2, 0]], &[&[0, 2, 4], &[2, 4]]);
    }

    #[test]
    fn a_long_circle_is_one() {
        let length = 200_000;
        let needs = Needs((0..length).map(|node| vec![(node + 1) % length]).collect());
        assert_eq!(needs.circles(2), [(0..length).collect::<Vec<_>>()]);
    }

    #[test]
    fn there_is_an_end_to_what_is_told() {
        let needs = Needs((0..9).map(|_| (0..9).collect()).collect());
        assert_eq!(needs.circles(3), [[0], [1], [2]]);
    }
}
