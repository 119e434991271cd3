//! The features on a path, with the weights of their subsets.

/// The maximum number of elements: one for each level of a tree, plus one for the empty set.
const ELEMENTS_MAX: usize = 33;

#[derive(Debug, Clone, Copy)]
struct Element {
    feature: usize,
    /// The fraction of training rows that follow the path if the feature is unknown.
    zero: f64,
    /// 1 if the row follows the path, otherwise 0.
    one: f64,
    /// The total weight of the subsets whose size equals this element's index.
    weight: f64,
}

/// The features on a path. The first element doesn't belong to a feature.
#[derive(Debug, Clone)]
pub(super) struct Path {
    elements: [Element; ELEMENTS_MAX],
    length: usize,
}

impl Path {
    pub(super) fn new() -> Self {
        let none = Element { feature: usize::MAX, zero: 1.0, one: 1.0, weight: 0.0 };
        let mut path = Self { elements: [none; ELEMENTS_MAX], length: 0 };
        path.extend(usize::MAX, 1.0, 1.0);
        path
    }

    /// Adds a feature. Each subset is extended with and without the feature.
    pub(super) fn extend(&mut self, feature: usize, zero: f64, one: f64) {
        let last = self.length;
        let weight = if last == 0 { 1.0 } else { 0.0 };
        self.elements[last] = Element { feature, zero, one, weight };
        self.length += 1;
        let size = real(last + 1);
        for index in (0..last).rev() {
            let weight = self.elements[index].weight;
            self.elements[index + 1].weight += one * weight * real(index + 1) / size;
            self.elements[index].weight = zero * weight * real(last - index) / size;
        }
    }

    /// Removes a repeated feature and returns its fractions; returns 1 and 1 for a new feature.
    pub(super) fn take(&mut self, feature: usize) -> (f64, f64) {
        let found = (1..self.length).find(|index| self.elements[*index].feature == feature);
        let Some(found) = found else { return (1.0, 1.0) };
        let Element { zero, one, .. } = self.elements[found];
        let last = self.length - 1;
        let size = real(last + 1);
        let mut next = self.elements[last].weight;
        for index in (0..last).rev() {
            let weight = self.elements[index].weight;
            if one != 0.0 {
                self.elements[index].weight = next * size / (real(index + 1) * one);
                next = weight - self.elements[index].weight * zero * real(last - index) / size;
            } else if zero != 0.0 {
                self.elements[index].weight = weight * size / (zero * real(last - index));
            }
        }
        for index in found..last {
            let Element { feature, zero, one, .. } = self.elements[index + 1];
            let weight = self.elements[index].weight;
            self.elements[index] = Element { feature, zero, one, weight };
        }
        self.length = last;
        (zero, one)
    }

    /// The features, each with the factor by which a leaf at the end of the path contributes.
    pub(super) fn contributions(&self) -> impl Iterator<Item = (usize, f64)> {
        (1..self.length).map(|index| {
            let Element { feature, zero, one, .. } = self.elements[index];
            (feature, self.sum_without(index) * (one - zero))
        })
    }

    /// The sum of the weights without one feature.
    fn sum_without(&self, index: usize) -> f64 {
        let Element { zero, one, .. } = self.elements[index];
        let last = self.length - 1;
        let size = real(last + 1);
        let mut next = self.elements[last].weight;
        let mut total = 0.0;
        for index in (0..last).rev() {
            let weight = self.elements[index].weight;
            if one != 0.0 {
                let taken = next * size / (real(index + 1) * one);
                total += taken;
                next = weight - taken * zero * real(last - index) / size;
            } else if zero != 0.0 {
                total += weight * size / (zero * real(last - index));
            }
        }
        total
    }
}

#[expect(clippy::cast_precision_loss, reason = "at most the number of elements")]
fn real(count: usize) -> f64 {
    count as f64
}
