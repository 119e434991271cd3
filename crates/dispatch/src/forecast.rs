//! How long a request will take, as far as its shapes and the past tell.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::time::Duration;

use galatea_infer::InputTensor;
use galatea_tensor::DataType;

use crate::assembly::Work;
use crate::pace::QUICK;

/// So many kinds of requests are remembered at once.
const KNOWN_MAX: usize = 4;

/// What quick executions of a kind bring in trust, one each, before it is enough.
const ENOUGH: u32 = 16;

/// No kind is trusted more.
const TRUST_MAX: u32 = 32;

/// What a slow one costs. It may be bad luck, such as another thread on the processor;
/// after three in a row the kind counts as slow.
const LOSS: u32 = 8;

/// What takes so many times as long as a quick one costs all trust: nobody waits for
/// that twice.
const FAR_TOO_SLOW: u32 = 10;

/// Foresees whether a request will be quick: if most with inputs of the same shapes and
/// sizes were. Only for instances whose time depends on nothing else.
#[derive(Debug, Default)]
pub(crate) struct Forecast {
    /// Keyed at random, so that nobody can make two kinds look alike.
    hasher: RandomState,
    known: [Known; KNOWN_MAX],
    /// The next one to be forgotten.
    oldest: usize,
}

/// A kind of request, and how far it is trusted to be quick.
#[derive(Copy, Clone, Debug, Default)]
struct Known {
    signature: Signature,
    trust: u32,
}

/// Stands for the shapes and sizes of a request's inputs.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signature(u64);

impl Forecast {
    /// What kind of request the batch is; `None` if it isn't one alone.
    pub(crate) fn signature(&self, work: &Work) -> Option<Signature> {
        let Work::Requests(requests) = work else { return None };
        let [request] = requests.as_slice() else { return None };
        Some(self.signature_of(&request.request().inputs))
    }

    fn signature_of(&self, inputs: &[InputTensor]) -> Signature {
        let mut hasher = self.hasher.build_hasher();
        for input in inputs {
            input.name.hash(&mut hasher);
            input.shape.dims().hash(&mut hasher);
            if input.datatype == DataType::Bytes {
                // What takes as long within a factor of two is called the same.
                hasher.write_u32(input.data.len().checked_ilog2().unwrap_or(0));
            }
        }
        Signature(hasher.finish())
    }

    /// Whether a request of this kind is likely to be quick.
    pub(crate) fn foresees_quick(&self, signature: Option<Signature>) -> bool {
        self.known.iter().any(|known| Some(known.signature) == signature && known.trust >= ENOUGH)
    }

    /// Learns from an execution.
    pub(crate) fn note(&mut self, signature: Option<Signature>, took: Duration) {
        let Some(signature) = signature else { return };
        let trust = match self.known.iter_mut().find(|known| known.signature == signature) {
            Some(known) => &mut known.trust,
            None => {
                self.oldest = (self.oldest + 1) % KNOWN_MAX;
                let Some(place) = self.known.get_mut(self.oldest) else { return };
                *place = Known { signature, trust: 0 };
                &mut place.trust
            }
        };
        *trust = match took {
            _ if took > QUICK.saturating_mul(FAR_TOO_SLOW) => 0,
            _ if took > QUICK => trust.saturating_sub(LOSS),
            _ => trust.saturating_add(1).min(TRUST_MAX),
        };
    }
}

#[cfg(test)]
mod tests {
    use galatea_tensor::{Buffer, Shape};

    use super::*;

    fn input(name: &str, dims: &[i64], datatype: DataType, bytes: usize) -> InputTensor {
        InputTensor {
            name: String::from(name),
            datatype,
            shape: Shape::new(dims).unwrap(),
            data: Buffer::from_vec(vec![0; bytes]),
        }
    }

    #[test]
    fn a_kind_is_told_by_names_shapes_and_the_size_of_strings() {
        let forecast = Forecast::default();
        let of = |input: InputTensor| forecast.signature_of(&[input]);
        let floats = |name, dims: &[i64]| of(input(name, dims, DataType::Fp32, 48));
        let strings = |bytes| of(input("a", &[3], DataType::Bytes, bytes));
        assert_eq!(floats("a", &[3, 4]), floats("a", &[3, 4]));
        assert_ne!(floats("a", &[3, 4]), floats("a", &[4, 3]));
        assert_ne!(floats("a", &[3, 4]), floats("a", &[12]));
        assert_ne!(floats("a", &[3, 4]), floats("b", &[3, 4]));
        assert_eq!(strings(64), strings(127));
        assert_ne!(strings(64), strings(128));
        let both = [input("a", &[1], DataType::Fp32, 4), input("b", &[1], DataType::Fp32, 4)];
        assert_ne!(forecast.signature_of(&both), forecast.signature_of(&both[..1]));
    }

    const SLOW: Duration = QUICK.saturating_add(Duration::from_nanos(1));

    #[test]
    fn each_kind_is_trusted_for_itself() {
        let mut forecast = Forecast::default();
        let kinds: Vec<_> = (1..=4).map(|number| Some(Signature(number))).collect();
        for round in 0..ENOUGH {
            for &kind in &kinds {
                assert!(!forecast.foresees_quick(kind), "in round {round}");
                forecast.note(kind, QUICK);
            }
        }
        assert!(kinds.iter().all(|&kind| forecast.foresees_quick(kind)));
        forecast.note(kinds[1], SLOW);
        assert!(!forecast.foresees_quick(kinds[1]));
        assert!(forecast.foresees_quick(kinds[2]));
        // A fifth kind takes the place of the first.
        forecast.note(Some(Signature(5)), QUICK);
        assert!(!forecast.foresees_quick(kinds[0]));
        assert!(forecast.foresees_quick(kinds[3]));
    }

    #[test]
    fn trust_outlasts_bad_luck_but_not_three_slow_ones() {
        let mut forecast = Forecast::default();
        let kind = Some(Signature(1));
        (0..999).for_each(|_| forecast.note(kind, QUICK));
        for expected in [true, true, false] {
            forecast.note(kind, SLOW);
            assert_eq!(forecast.foresees_quick(kind), expected);
        }
        (0..99).for_each(|_| forecast.note(kind, QUICK));
        forecast.note(kind, QUICK * FAR_TOO_SLOW + Duration::from_nanos(1));
        assert!(!forecast.foresees_quick(kind), "one is enough if it is that slow");
        (0..99).for_each(|_| forecast.note(kind, SLOW));
        (0..ENOUGH).for_each(|_| forecast.note(kind, QUICK));
        assert!(forecast.foresees_quick(kind), "distrust ends too");
    }

    #[test]
    fn batches_of_several_are_not_foreseen() {
        let mut forecast = Forecast::default();
        (0..99).for_each(|_| forecast.note(None, QUICK));
        assert!(!forecast.foresees_quick(None));
        assert_eq!(forecast.signature(&Work::Requests(Vec::new())), None);
        assert_eq!(forecast.signature(&Work::Rows(Vec::new())), None);
    }
}
