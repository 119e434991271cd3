//! The list of planted bugs and their places in the sources.

use std::ops::Range;

use galatea_sim::Random;

const LISTS: [&str; 12] = [
    include_str!("../../../mutants/scheduler.mutants"),
    include_str!("../../../mutants/sequences.mutants"),
    include_str!("../../../mutants/replies.mutants"),
    include_str!("../../../mutants/permits.mutants"),
    include_str!("../../../mutants/ensembles.mutants"),
    include_str!("../../../mutants/workers.mutants"),
    include_str!("../../../mutants/deadlines.mutants"),
    include_str!("../../../mutants/padding.mutants"),
    include_str!("../../../mutants/padded_deadlines.mutants"),
    include_str!("../../../mutants/residency.mutants"),
    include_str!("../../../mutants/shares.mutants"),
    include_str!("../../../mutants/coalescing.mutants"),
];

/// A bug to plant: a text replacement.
#[derive(Clone, Debug)]
pub(crate) struct Mutant<'list> {
    pub(crate) name: &'list str,
    /// The file path, relative to `crates/policy`.
    pub(crate) file: &'list str,
    pub(crate) old: String,
    pub(crate) new: String,
}

/// Parses all mutants.
pub(crate) fn parse_all() -> Result<Vec<Mutant<'static>>, String> {
    LISTS.iter().map(|list| parse(list)).collect::<Result<Vec<_>, _>>().map(|lists| lists.concat())
}

fn parse(list: &str) -> Result<Vec<Mutant<'_>>, String> {
    let mut mutants: Vec<Mutant<'_>> = Vec::new();
    for line in
        list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        if let Some(name) = line.strip_prefix("mutant:") {
            mutants.push(Mutant {
                name: name.trim(),
                file: "",
                old: String::new(),
                new: String::new(),
            });
            continue;
        }
        let mutant =
            mutants.last_mut().ok_or_else(|| format!("{line:?} comes before the first mutant"))?;
        if let Some(file) = line.strip_prefix("file:") {
            mutant.file = file.trim();
        } else if let Some(old) = line.strip_prefix("- ") {
            mutant.old = format!("{} {}", mutant.old, old.trim());
        } else if let Some(new) = line.strip_prefix('+') {
            mutant.new = format!("{}\n{}", mutant.new, new.trim());
        } else {
            return Err(format!("{line:?} is none of mutant:, file:, - and +"));
        }
    }
    Ok(mutants)
}

/// Draws a sample of the mutants, in list order. The same seed gives the same sample.
pub(crate) fn sample(mutants: Vec<Mutant<'_>>, size: usize, seed: u64) -> Vec<Mutant<'_>> {
    let mut random = Random::new(seed);
    let mut drawn: Vec<(u64, usize, Mutant<'_>)> = mutants
        .into_iter()
        .enumerate()
        .map(|(index, mutant)| (random.number(), index, mutant))
        .collect();
    drawn.sort_by_key(|(number, ..)| *number);
    drawn.truncate(size);
    drawn.sort_by_key(|(_, index, _)| *index);
    drawn.into_iter().map(|(.., mutant)| mutant).collect()
}

/// Finds the occurrences of the text, with any whitespace between its words.
pub(crate) fn find(source: &str, text: &str) -> Vec<Range<usize>> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let Some(first) = words.first() else { return Vec::new() };
    let starts = source.match_indices(first).map(|(start, _)| start);
    starts.filter_map(|start| Some(start..match_words(source, start, &words)?)).collect()
}

/// Returns the end of the words if they begin here.
fn match_words(source: &str, start: usize, words: &[&str]) -> Option<usize> {
    let mut end = start;
    for (index, word) in words.iter().enumerate() {
        let rest = &source[end..];
        let trimmed = rest.trim_start();
        let space = rest.len() - trimmed.len();
        if (index > 0 && space == 0) || !trimmed.starts_with(word) {
            return None;
        }
        end += space + word.len();
    }
    Some(end)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The simulator can't find a mutant if the text to replace is gone, so the list must change
    /// along with the code in which it plants bugs.
    #[test]
    fn each_planted_bug_has_its_place() {
        let mutants = parse_all().unwrap();
        assert!(mutants.len() >= 100);
        let is_planted = |mutant: &&Mutant<'_>| {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy").join(mutant.file);
            let source = std::fs::read_to_string(path).unwrap();
            let is_complete = !mutant.old.is_empty() && !mutant.new.is_empty();
            find(&source, &mutant.old).len() == 1 && is_complete
        };
        let (planted, stale): (Vec<_>, Vec<_>) = mutants.iter().partition(is_planted);
        let stale: Vec<&str> = stale.into_iter().map(|mutant| mutant.name).collect();
        assert!(stale.is_empty(), "{} have their place, these don't: {stale:#?}", planted.len());
    }

    #[test]
    fn text_is_found_across_lines() {
        assert_eq!(find("a  +\n b; a + b", "a + b"), [0..7, 9..14]);
        assert_eq!(find("a+b", "a + b"), []);
    }

    #[test]
    fn a_seed_draws_the_same_sample_and_seeds_draw_all_mutants() {
        let names = |seed| {
            let sample = sample(parse_all().unwrap(), 3, seed);
            sample.into_iter().map(|mutant| mutant.name).collect::<Vec<_>>()
        };
        assert_eq!(names(1), names(1));
        assert_eq!(names(1).len(), 3);
        let mut drawn: Vec<&str> = (0..2000).flat_map(names).collect();
        drawn.sort_unstable();
        drawn.dedup();
        let mut all: Vec<&str> = parse_all().unwrap().iter().map(|mutant| mutant.name).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(drawn, all);
    }
}
