//! Regions of memory that travel with a request.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// Where a region of memory lies.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Host memory.
    Cpu,
    /// Memory of the GPU with this number; the CPU can't read it.
    Gpu(u32),
}

/// A ref-counted region of bytes that someone keeps alive: a slice of a
/// request's body, a guard on a mapping, a caller's pointer with its release
/// function, a slice of a batch's output.
///
/// Cloning and slicing never copy bytes.
#[derive(Clone)]
pub struct Buffer {
    region: Region,
    /// How long that is what the region is a part of, if somebody said so.
    whole_bytes: usize,
    /// The same elements for instances of these host policies; most have none.
    host_policies: Option<Arc<[(String, Self)]>>,
}

#[derive(Clone)]
enum Region {
    Host(Bytes),
    Device(DeviceRegion),
}

/// Memory of a device, known by its address alone.
///
/// The address is never dereferenced by safe code; it is handed to backends
/// that can.
#[derive(Clone)]
pub struct DeviceRegion {
    /// The device's number.
    pub device: u32,
    /// The address on the device.
    pub address: u64,
    /// The length in bytes.
    pub byte_size: usize,
    /// Whatever keeps the memory allocated; dropped with the last clone.
    pub owner: Arc<dyn Any + Send + Sync>,
}

impl Buffer {
    /// A buffer over host memory; foreign memory comes in through
    /// [`Bytes::from_owner`].
    #[must_use]
    pub const fn from_bytes(bytes: Bytes) -> Self {
        Self::of(Region::Host(bytes))
    }

    /// A buffer that owns `data`.
    #[must_use]
    pub fn from_vec(data: Vec<u8>) -> Self {
        Self::from_bytes(Bytes::from(data))
    }

    /// A buffer over a device's memory.
    #[must_use]
    pub const fn from_device(region: DeviceRegion) -> Self {
        Self::of(Region::Device(region))
    }

    const fn of(region: Region) -> Self {
        Self { region, whole_bytes: 0, host_policies: None }
    }

    /// The buffer as a part of something that is so long and lives as long as it.
    #[must_use]
    pub const fn part_of(mut self, whole_bytes: usize) -> Self {
        self.whole_bytes = whole_bytes;
        self
    }

    /// How much memory the buffer keeps alive, as far as is known.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.whole_bytes.max(self.len())
    }

    /// The buffer with others in its place for instances of the named host policies.
    #[must_use]
    pub fn with_host_policies(self, others: Vec<(String, Self)>) -> Self {
        let host_policies = Some(others).filter(|others| !others.is_empty()).map(Arc::from);
        Self { host_policies, ..self }
    }

    /// The host policies that have buffers of their own, with these.
    #[must_use]
    pub fn host_policies(&self) -> &[(String, Self)] {
        self.host_policies.as_deref().unwrap_or_default()
    }

    /// The buffer for instances of a host policy.
    #[must_use]
    pub fn for_host_policy(&self, name: &str) -> &Self {
        let own = self.host_policies().iter().find(|(policy, _)| policy == name);
        own.map_or(self, |(_, buffer)| buffer)
    }

    /// An empty host buffer.
    #[must_use]
    pub const fn empty() -> Self {
        Self::from_bytes(Bytes::new())
    }

    /// Where the bytes lie.
    #[must_use]
    pub const fn memory(&self) -> MemoryKind {
        match &self.region {
            Region::Host(_) => MemoryKind::Cpu,
            Region::Device(region) => MemoryKind::Gpu(region.device),
        }
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.region {
            Region::Host(bytes) => bytes.len(),
            Region::Device(region) => region.byte_size,
        }
    }

    /// Whether the length is zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, if the CPU can read them.
    #[must_use]
    pub const fn host(&self) -> Option<&Bytes> {
        match &self.region {
            Region::Host(bytes) => Some(bytes),
            Region::Device(_) => None,
        }
    }

    /// The device region, if the bytes lie on a device.
    #[must_use]
    pub const fn device(&self) -> Option<&DeviceRegion> {
        match &self.region {
            Region::Host(_) => None,
            Region::Device(region) => Some(region),
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes, {:?})", self.len(), self.memory())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_the_bytes() {
        let buffer = Buffer::from_vec(vec![1, 2, 3]);
        let clone = buffer.clone();
        assert_eq!(buffer.host().unwrap().as_ptr(), clone.host().unwrap().as_ptr());
        assert_eq!(buffer.memory(), MemoryKind::Cpu);
    }

    #[test]
    fn a_part_keeps_the_whole() {
        let whole = Bytes::from(vec![7; 100]);
        let part = Buffer::from_bytes(whole.slice(5..15)).part_of(whole.len());
        assert_eq!((part.len(), part.clone().kept_bytes()), (10, 100));
        assert_eq!(part.with_host_policies(Vec::new()).kept_bytes(), 100);
        assert_eq!(Buffer::from_bytes(whole).kept_bytes(), 100);
    }

    #[test]
    fn a_host_policy_may_have_a_buffer_of_its_own() {
        let policies = vec![(String::from("far"), Buffer::from_vec(vec![4]))];
        let buffer = Buffer::from_vec(vec![1]).with_host_policies(policies).clone();
        assert_eq!(buffer.for_host_policy("far").host().unwrap()[..], [4]);
        assert_eq!(buffer.for_host_policy("cpu").host().unwrap()[..], [1]);
        assert!(buffer.with_host_policies(Vec::new()).host_policies().is_empty());
    }

    #[test]
    fn a_device_buffer_is_not_readable_and_frees_its_owner_last() {
        let owner = Arc::new(());
        let buffer = Buffer::from_device(DeviceRegion {
            device: 1,
            address: 64,
            byte_size: 8,
            owner: owner.clone(),
        });
        let clone = buffer.clone();
        assert!(buffer.host().is_none());
        assert_eq!((clone.len(), clone.memory()), (8, MemoryKind::Gpu(1)));
        drop((buffer, clone));
        assert_eq!(Arc::strong_count(&owner), 1);
    }
}
