//! Finds cycles in a graph in linear time and without recursion, because configurations are
//! untrusted.

use std::collections::{BTreeMap, BTreeSet};

/// The dependencies of each node; nodes are numbered from zero.
pub(super) struct DependencyGraph(pub(super) Vec<Vec<usize>>);

impl DependencyGraph {
    /// Finds at most `cycles_max` cycles: one for each node that is the first of a cycle, in node
    /// order. A cycle lists each node before its dependency, without the return to the first node.
    pub(super) fn cycles(&self, cycles_max: usize) -> Vec<Vec<usize>> {
        let mut components = BTreeMap::new();
        self.add_components((0..self.0.len()).collect(), &mut components);
        let mut cycles = Vec::new();
        while cycles.len() < cycles_max
            && let Some((first, mut component)) = components.pop_first()
        {
            cycles.push(self.cycle(first, &component));
            // The rest of the component may have cycles without its first node.
            component.remove(&first);
            self.add_components(component, &mut components);
        }
        cycles
    }

    /// The dependencies of a node within the members.
    fn dependencies_within<'a>(
        &'a self,
        node: usize,
        members: &'a BTreeSet<usize>,
    ) -> impl Iterator<Item = usize> + 'a {
        let dependency = self.0.get(node).into_iter().flatten().copied();
        dependency.filter(move |dependency| members.contains(dependency))
    }

    /// Adds the strongly connected components of the members, keyed by first node, using Kosaraju's
    /// algorithm.
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

    /// The members in reverse order of their completion in a depth-first search.
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

    /// A path from a node back to itself within a component.
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
        // Two cycles share a node, and one cycle depends on another.
        check(&[&[1], &[0, 2], &[1], &[4], &[3, 0]], &[&[0, 1], &[1, 2], &[3, 4]]);
        // A dead end, and a cycle that does not contain the first node.
        check(&[&[1, 2], &[3], &[4], &[], &[3, 2, 0]], &[&[0, 2, 4], &[2, 4]]);
    }

    #[test]
    fn a_long_cycle_is_found() {
        let length = 200_000;
        let graph = DependencyGraph((0..length).map(|node| vec![(node + 1) % length]).collect());
        assert_eq!(graph.cycles(2), [(0..length).collect::<Vec<_>>()]);
    }

    #[test]
    fn the_number_of_cycles_is_limited() {
        let graph = DependencyGraph((0..9).map(|_| (0..9).collect()).collect());
        assert_eq!(graph.cycles(3), [[0], [1], [2]]);
    }
}
