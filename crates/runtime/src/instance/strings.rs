//! Memory for strings while a batch executes. A library stores each string as an object. For an
//! empty string, the object takes eight times as much memory as the string in a request.

use std::sync::Arc;

use bytes::Bytes;
use galatea_gate::ledger::{MemoryAccount, MemoryCharge};
use galatea_infer::{PendingRequest, Status};
use galatea_tensor::elements::BytesElements;
use galatea_tensor::{Buffer, DataType};

use crate::session::{STRING_BYTES, SessionOutputs};
use crate::signature::ModelSignature;

/// The maximum length of a string that is stored in its object.
const INLINE_BYTES: usize = 15;

/// The minimum memory for a longer string: the library's strings grow by doubling.
const GROWN_BYTES: usize = 31;

/// The allocator's overhead per allocation, including rounding.
const ALLOCATION_BYTES: usize = 24;

/// An upper bound on a string's memory per byte of its tensor. An empty string, which takes four
/// bytes in the tensor, reaches this bound.
const FACTOR_MAX: usize = STRING_BYTES / size_of::<u32>();

/// The charge for a run's strings, which is made before they are created. Small numbers of strings
/// are not charged.
pub(super) struct StringCharge<'a> {
    account: &'a Arc<MemoryAccount>,
    charge: Option<MemoryCharge>,
    has_outputs: bool,
}

impl<'a> StringCharge<'a> {
    /// Charges the inputs, and the same amount for the outputs, because models either pass strings
    /// through or convert them to numbers.
    pub(super) fn of_inputs(
        signature: &ModelSignature,
        requests: &[PendingRequest],
        host_policy: &str,
        account: &'a Arc<MemoryAccount>,
    ) -> Result<Self, Status> {
        let of_strings = |datatype: DataType| datatype == DataType::Bytes;
        let has_outputs = signature.outputs.iter().any(|plan| of_strings(plan.datatype));
        let mut charge = Self { account, charge: None, has_outputs };
        let mut bytes: usize = 0;
        for plan in signature.inputs.iter().filter(|plan| of_strings(plan.datatype)) {
            for pending in requests {
                let Some(input) = pending.request().input(&plan.name) else { continue };
                let data = input.data.for_host_policy(host_policy);
                let framed = data.host_bytes().map_or(&[][..], |bytes| bytes);
                bytes = bytes.saturating_add(memory_of(framed, data.len()));
            }
        }
        if has_outputs {
            bytes = bytes.saturating_mul(2);
        }
        charge.reach(bytes)?;
        Ok(charge)
    }

    /// Charges the outputs, in addition to the existing charge, before they are read.
    pub(super) fn add_outputs(&mut self, outputs: &impl SessionOutputs) -> Result<(), Status> {
        if !self.has_outputs {
            return Ok(());
        }
        let bytes = outputs.string_bytes()?;
        let inputs = self.charge.as_ref().map_or(0, |charge| charge.bytes() / 2);
        self.reach(inputs.saturating_add(bytes))
    }

    /// Releases the charge, because the library's objects have been freed.
    pub(super) fn converted(self) {
        drop(self.charge);
    }

    fn reach(&mut self, bytes: usize) -> Result<(), Status> {
        if bytes > MemoryAccount::SMALL_BYTES_MAX {
            let account = self.account;
            let charge = self.charge.get_or_insert_with(|| MemoryCharge::nothing(account.clone()));
            charge.grow_to(bytes)?;
        }
        Ok(())
    }
}

/// The memory that the library's objects for framed strings take. Short tensors and tensors in
/// unreadable memory are not read for this estimate.
fn memory_of(framed: &[u8], length: usize) -> usize {
    let most = length.saturating_mul(FACTOR_MAX);
    if most <= MemoryAccount::SMALL_BYTES_MAX || framed.is_empty() {
        return most;
    }
    let elements = BytesElements::new(framed).map_while(Result::ok);
    elements.map(|element| object_bytes(element.len())).fold(0, usize::saturating_add)
}

fn object_bytes(length: usize) -> usize {
    if length <= INLINE_BYTES {
        return STRING_BYTES;
    }
    length.max(GROWN_BYTES).saturating_add(ALLOCATION_BYTES).saturating_add(STRING_BYTES)
}

/// A response's strings. They are charged until the response has been written.
pub(super) fn charged(framed: Vec<u8>, account: &Arc<MemoryAccount>) -> Result<Buffer, Status> {
    if framed.len() <= MemoryAccount::SMALL_BYTES_MAX {
        return Ok(Buffer::from_vec(framed));
    }
    let charge = MemoryCharge::new(account, framed.len())?;
    Ok(Buffer::from_bytes(Bytes::from_owner(charge.attach_to(framed))).mark_charged())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_cost_what_the_library_takes() {
        assert_eq!(memory_of(&[0; 4 << 10], 4 << 10), 32 << 10);
        assert_eq!(memory_of(&[], 4 << 10), 32 << 10);
        let long = [&1000_u32.to_le_bytes()[..], &[b'x'; 1000]].concat().repeat(4);
        assert_eq!(memory_of(&long, long.len()), 4 * (1000 + 24 + 32));
        assert_eq!(object_bytes(15), 32);
        assert_eq!(object_bytes(16), 31 + 24 + 32);
    }
}
