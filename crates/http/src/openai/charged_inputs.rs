//! The memory for inputs, which is charged before they are created.

use std::sync::Arc;

use bytes::Bytes;
use galatea_gate::ledger::{MemoryAccount, MemoryCharge};
use galatea_infer::{InputTensor, Status};
use galatea_tensor::Buffer;

/// A charge for inputs that don't exist yet; `None` if they are small.
pub(super) struct ChargedInputs(Option<MemoryCharge>);

impl ChargedInputs {
    /// Charges the bytes of inputs.
    ///
    /// # Errors
    ///
    /// Code `Exhausted` if the bytes exceed the limit.
    pub(super) fn new(account: &Arc<MemoryAccount>, bytes: usize) -> Result<Self, Status> {
        let is_large = bytes > MemoryAccount::SMALL_BYTES_MAX;
        Ok(Self(is_large.then(|| MemoryCharge::new(account, bytes)).transpose()?))
    }

    /// Binds the charge to the inputs, in their order. Inputs beyond the charge stay uncharged.
    pub(super) fn attach_to(self, mut inputs: Vec<InputTensor>) -> Vec<InputTensor> {
        let Some(mut charge) = self.0 else { return inputs };
        for input in &mut inputs {
            let part = charge.split_off(input.data.len());
            if let Some(bytes) = input.data.host_bytes().filter(|_| part.bytes() > 0) {
                let bytes = Bytes::from_owner(part.attach_to(bytes.clone()));
                input.data = Buffer::from_bytes(bytes).mark_charged();
            }
        }
        inputs
    }
}

#[cfg(test)]
mod tests {
    use galatea_gate::ledger::MemoryLedger;
    use galatea_tensor::{DataType, Shape};

    use super::*;

    fn input(length: usize) -> InputTensor {
        InputTensor {
            name: String::from("text"),
            datatype: DataType::Uint8,
            shape: Shape::new(&[i64::try_from(length).unwrap()]).unwrap(),
            data: Buffer::from_vec(vec![7; length]),
        }
    }

    #[test]
    fn each_input_keeps_its_part_of_the_charge() {
        let ledger = Arc::new(MemoryLedger::new(Some(1 << 20)));
        let account = Arc::new(MemoryAccount::without_base(ledger));
        let charged = ChargedInputs::new(&account, 500_000).unwrap();
        assert_eq!(account.held(), 500_000);
        let mut inputs = charged.attach_to(vec![input(400_000), input(100_000), input(10)]);
        assert_eq!(account.held(), 500_000);
        let are_charged: Vec<bool> = inputs.iter().map(|input| input.data.is_charged()).collect();
        assert_eq!(are_charged, [true, true, false]);
        inputs.remove(0);
        assert_eq!(account.held(), 100_000);
        assert_eq!(inputs[0].data.host_bytes().unwrap().as_ref(), vec![7; 100_000]);
        drop(inputs);
        assert_eq!(account.held(), 0);
        assert!(ChargedInputs::new(&account, 2 << 20).is_err());
    }

    #[test]
    fn small_inputs_are_not_charged() {
        let account = Arc::new(MemoryAccount::unlimited());
        let charged = ChargedInputs::new(&account, MemoryAccount::SMALL_BYTES_MAX).unwrap();
        assert!(!charged.attach_to(vec![input(8)])[0].data.is_charged());
        assert_eq!(account.held(), 0);
    }
}
