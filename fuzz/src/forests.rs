//! Models of forests: a file gives an error or a forest that predicts.

use galatea_forest::{Explainer, ModelFormat, read_forest};

use crate::bounded_by_length;

/// The widest rows and outputs that are predicted, and the rows.
const VALUES_MAX: usize = 4096;
const ROWS: usize = 13;

/// Reads a model, whose memory its length bounds, and predicts rows: in groups as by themselves.
pub fn read_and_predict(format: ModelFormat, file: &[u8]) {
    bounded_by_length(file, |file| {
        let _ = read_forest(format, file);
    });
    let Ok(forest) = read_forest(format, file) else { return };
    let (features, outputs) = (forest.feature_count(), forest.outputs_per_row());
    if features > VALUES_MAX || outputs > VALUES_MAX {
        return;
    }
    let kinds = [0.0, 1.0, f32::NAN, -1.5, f32::INFINITY, f32::NEG_INFINITY, 1e-36, 3e7, 0.5];
    // Neighbors in a row differ, and so do rows.
    let rows: Vec<f32> = (0..ROWS * features)
        .map(|index| kinds[(index + index / features.max(1)) % kinds.len()])
        .collect();
    let mut together = vec![0.0; ROWS * outputs];
    forest.predict(&rows, ROWS, &mut together, 1).expect("lengths fit");
    for (index, expected) in together.chunks(outputs).enumerate() {
        let row = &rows[index * features..(index + 1) * features];
        let mut alone = vec![0.0; outputs];
        forest.predict(row, 1, &mut alone, 1).expect("lengths fit");
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        let is_equal = bits(&alone) == bits(expected) || alone.iter().any(|value| value.is_nan());
        assert!(is_equal, "{alone:?} is not {expected:?}");
    }
    if let Ok(explainer) = Explainer::new(&forest)
        && explainer.outputs_per_row() <= VALUES_MAX
    {
        let mut output = vec![0.0; explainer.outputs_per_row()];
        explainer.explain(&rows[..features], 1, &mut output).expect("lengths fit");
    }
}
