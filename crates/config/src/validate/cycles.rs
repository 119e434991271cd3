//! Circles in a graph, found in steps that grow with its size, however long
//! they are: a configuration is written by whoever writes models.

use std::collections::{BTreeMap, BTreeSet};

/// What each node needs; nodes are numbers from zero.
pub(super) struct DependencyGraph(pub(super) Vec<Vec<usize>>);

impl DependencyGraph {
    /// A cycle for each node that is the first of some, in the nodes' order and at
    /// most so many: from what needs to what is needed, without the return.
    pub(super) fn cycles(&self, cycles_max: usize) -> Vec<Vec<usize>> {
        let mut components = BTreeMap::new();
        self.add_components((0..self.0.len()).collect(), &mut components);
        let mut cycles = Vec::new();
        while cycles.len() < cycles_max
            && let Some((first, mut component)) = components.pop_first()
        {
            cycles.push(self.cycle(first, &component));
            // What else is in the component may go round without its first node.
            component.remove(&first);
            self.add_components(component, &mut components);
        }
        cycles
    }

    /// What a node needs among others.
    fn dependencies_within<'a>(
        &'a self,
        node: usize,
        members: &'a BTreeSet<usize>,
    ) -> impl Iterator<Item = usize> + 'a {
        let dependency = self.0.get(node).into_iter().flatten().copied();
        dependency.filter(move |dependency| members.contains(dependency))
    }

    /// The members that need each other, as sets by their first node. These are
    /// the strongly connected components, by Kosaraju's algorithm.
    fn add_components(
        &self,
        members: BTreeSet<usize>,
        components: &mut BTreeMap<usize, BTreeSet<usize>>,
    ) {
        let mut dependents: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for &node in &members {
            for dependency in self.dependencies_within(node, &members) {
                dependents.entry(dependency).or_default().push(node);
            }
        }
        let mut left = members;
        for start in self.finish_order(&left) {
            let mut component = BTreeSet::new();
            let mut next = vec![start];
            while let Some(node) = next.pop() {
                if left.remove(&node) {
                    component.insert(node);
                    next.extend(dependents.get(&node).into_iter().flatten());
                }
            }
            let is_alone = component.len() == 1
                && self.dependencies_within(start, &component).next().is_none();
            if let Some(&first) = component.first()
                && !is_alone
            {
                components.insert(first, component);
            }
        }
    }

    /// The members, each behind those from which it can't be reached but that it
    /// can reach.
    fn finish_order(&self, members: &BTreeSet<usize>) -> Vec<usize> {
        let mut seen = BTreeSet::new();
        let mut finished = Vec::with_capacity(members.len());
        for &start in members {
            if !seen.insert(start) {
                continue;
            }
            let mut path = vec![(start, self.dependencies_within(start, members))];
            while let Some((node, rest)) = path.last_mut() {
                match rest.find(|dependency| seen.insert(*dependency)) {
                    Some(dependency) => {
                        path.push((dependency, self.dependencies_within(dependency, members)))
                    }
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
    fn cycle(&self, start: usize, component: &BTreeSet<usize>) -> Vec<usize> {
        let mut seen = BTreeSet::new();
        let mut path = vec![(start, self.dependencies_within(start, component))];
        while let Some((_, rest)) = path.last_mut() {
            match rest.find(|dependency| *dependency == start || seen.insert(*dependency)) {
                Some(dependency) if dependency == start => break,
                Some(dependency) => {
                    path.push((dependency, self.dependencies_within(dependency, component)))
                }
                None => drop(path.pop()),
            }
        }
        path.into_iter().map(|(node, _)| node).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::DependencyGraph;

    fn check(graph: &[&[usize]], cycles: &[&[usize]]) {
        let graph = DependencyGraph(graph.iter().map(|dependency| dependency.to_vec()).collect());
        assert_eq!(graph.cycles(usize::MAX), cycles);
    }

    #[test]
    fn each_cycle_begins_with_its_first_node() {
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
    fn a_long_cycle_is_one() {
        let length = 200_000;
        let graph = DependencyGraph((0..length).map(|node| vec![(node + 1) % length]).collect());
        assert_eq!(graph.cycles(2), [(0..length).collect::<Vec<_>>()]);
    }

    #[test]
    fn there_is_an_end_to_what_is_told() {
        let graph = DependencyGraph((0..9).map(|_| (0..9).collect()).collect());
        assert_eq!(graph.cycles(3), [[0], [1], [2]]);
    }
}
