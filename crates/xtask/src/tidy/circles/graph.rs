//! Circles in a graph of names.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Names and the arrows between them.
#[derive(Debug, Default)]
pub(super) struct Graph(BTreeMap<String, BTreeSet<String>>);

impl Graph {
    pub(super) fn add(&mut self, from: String, to: String) {
        self.0.entry(from).or_default().insert(to);
    }

    /// Reports, for each set of names that reach each other, a shortest circle, and the whole set
    /// if it is larger.
    pub(super) fn circles(&self) -> Vec<String> {
        let mut done: BTreeSet<&str> = BTreeSet::new();
        let mut found = Vec::new();
        for name in self.0.keys() {
            if done.contains(name.as_str()) {
                continue;
            }
            let reached = self.reached_from(name);
            let set: BTreeSet<&str> = reached
                .into_iter()
                .filter(|other| self.reached_from(other).contains(name.as_str()))
                .collect();
            done.extend(&set);
            let shortest = set.iter().filter_map(|name| self.shortest(name)).min_by_key(Vec::len);
            if let Some(circle) = shortest {
                let all = set.into_iter().collect::<Vec<_>>();
                let mut text = circle.join(" → ");
                if all.len() >= circle.len() {
                    text = format!("{text} (of {} modules: {})", all.len(), all.join(", "));
                    text.extend(self.arrows_among(&all));
                }
                found.push(text);
            }
        }
        found
    }

    /// Formats a line for each name, with the names in the set that it leads to.
    fn arrows_among(&self, set: &[&str]) -> Vec<String> {
        let line = |from: &&str| {
            let to: Vec<&str> = self.next(from).filter(|to| set.contains(to)).collect();
            format!("\n    {from} → {}", to.join(", "))
        };
        set.iter().map(line).collect()
    }

    fn next<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.0.get(name).into_iter().flatten().map(String::as_str)
    }

    /// Returns every name reachable from `name`, including `name` itself only if it is on a circle.
    fn reached_from(&self, name: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut open: Vec<&str> = self.next(name).collect();
        while let Some(name) = open.pop() {
            if reached.insert(name) {
                open.extend(self.next(name));
            }
        }
        reached
    }

    /// A shortest path from a name back to itself, with the name at both ends.
    fn shortest<'a>(&'a self, name: &'a str) -> Option<Vec<&'a str>> {
        let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
        let mut open = VecDeque::from([name]);
        while let Some(current) = open.pop_front() {
            for next in self.next(current) {
                if next == name {
                    let mut way = vec![name, current];
                    while let Some(previous) = way.last().and_then(|last| came_from.get(last)) {
                        way.push(previous);
                    }
                    if current == name {
                        way.pop();
                    }
                    way.reverse();
                    way.push(name);
                    way.dedup();
                    return Some(way);
                }
                if next != name && !came_from.contains_key(next) {
                    came_from.insert(next, current);
                    open.push_back(next);
                }
            }
        }
        None
    }
}
