//! A tensor's memory.

mod foreign;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

pub use foreign::{ForeignMemory, ForeignMemoryError, ForeignRegion};

/// The kind of memory that contains a region.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Host memory.
    Cpu,
    /// Memory of the GPU with this number; the CPU can't read it.
    Gpu(u32),
}

/// A reference-counted region of bytes: a slice of a request's body or of a batch's
/// output, a mapping, or a caller's pointer with its release function.
///
/// Cloning and slicing never copy bytes.
#[derive(Clone)]
pub struct Buffer {
    region: Region,
    /// The size of the larger region that this buffer keeps alive; 0 if unknown.
    retained_bytes: usize,
    /// True if the memory is charged to an account for its whole lifetime.
    is_charged: bool,
    /// Buffers with the same elements, each for instances with one host policy; usually none.
    host_policies: Option<Arc<[(String, Self)]>>,
}

#[derive(Clone)]
enum Region {
    Host(Bytes),
    Device(DeviceRegion),
    Foreign(ForeignRegion),
}

/// Device memory, known only by its address.
///
/// Safe code never dereferences the address; it is passed to backends that can use it.
#[derive(Clone)]
pub struct DeviceRegion {
    /// The device's number.
    pub device: u32,
    /// The address on the device.
    pub address: u64,
    /// The length in bytes.
    pub byte_size: usize,
    /// Keeps the memory allocated; dropped with the last clone.
    pub owner: Arc<dyn Any + Send + Sync>,
}

impl Buffer {
    /// Creates a buffer over host memory. Foreign memory enters through [`Bytes::from_owner`].
    #[must_use]
    pub const fn from_bytes(bytes: Bytes) -> Self {
        Self::new(Region::Host(bytes))
    }

    /// Creates a buffer that owns `data`.
    #[must_use]
    pub fn from_vec(data: Vec<u8>) -> Self {
        Self::from_bytes(Bytes::from(data))
    }

    /// Creates a buffer over device memory.
    #[must_use]
    pub const fn from_device(region: DeviceRegion) -> Self {
        Self::new(Region::Device(region))
    }

    /// Creates a buffer over memory that others may change.
    #[must_use]
    pub const fn from_foreign(region: ForeignRegion) -> Self {
        let is_charged = region.charge.is_some();
        let mut buffer = Self::new(Region::Foreign(region));
        buffer.is_charged = is_charged;
        buffer
    }

    const fn new(region: Region) -> Self {
        Self { region, retained_bytes: 0, is_charged: false, host_policies: None }
    }

    /// Declares that the buffer keeps a larger region of this size alive.
    #[must_use]
    pub const fn with_retained_bytes(mut self, retained_bytes: usize) -> Self {
        self.retained_bytes = retained_bytes;
        self
    }

    /// Declares that the buffer's memory is charged to an account for its whole lifetime, so a
    /// response that returns it needs no charge of its own.
    #[must_use]
    pub const fn mark_charged(mut self) -> Self {
        self.is_charged = true;
        self
    }

    /// Returns true if the buffer's memory is already charged.
    #[must_use]
    pub const fn is_charged(&self) -> bool {
        self.is_charged
    }

    /// The memory that the buffer is known to keep alive, in bytes.
    #[must_use]
    pub fn retained_bytes(&self) -> usize {
        self.retained_bytes.max(self.len())
    }

    /// Adds buffers that replace this one for instances with the specified host policies.
    #[must_use]
    pub fn with_host_policy_buffers(self, others: Vec<(String, Self)>) -> Self {
        let host_policies = Some(others).filter(|others| !others.is_empty()).map(Arc::from);
        Self { host_policies, ..self }
    }

    /// The host policies with their own buffers, and these buffers.
    #[must_use]
    pub fn host_policy_buffers(&self) -> &[(String, Self)] {
        self.host_policies.as_deref().unwrap_or_default()
    }

    /// The buffer for instances with a host policy.
    #[must_use]
    pub fn for_host_policy(&self, name: &str) -> &Self {
        let own = self.host_policy_buffers().iter().find(|(policy, _)| policy == name);
        own.map_or(self, |(_, buffer)| buffer)
    }

    /// Creates an empty host buffer.
    #[must_use]
    pub const fn empty() -> Self {
        Self::from_bytes(Bytes::new())
    }

    /// The kind of memory that contains the bytes.
    #[must_use]
    pub fn memory_kind(&self) -> MemoryKind {
        match &self.region {
            Region::Host(_) => MemoryKind::Cpu,
            Region::Foreign(region) => region.memory.kind(),
            Region::Device(region) => MemoryKind::Gpu(region.device),
        }
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.region {
            Region::Host(bytes) => bytes.len(),
            Region::Device(region) => region.byte_size,
            Region::Foreign(region) => region.byte_size,
        }
    }

    /// Returns true if the length is zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, if the CPU can read them and nothing else changes them.
    #[must_use]
    pub const fn host_bytes(&self) -> Option<&Bytes> {
        match &self.region {
            Region::Host(bytes) => Some(bytes),
            Region::Device(_) | Region::Foreign(_) => None,
        }
    }

    /// The foreign region, if others may change the bytes.
    #[must_use]
    pub const fn foreign(&self) -> Option<&ForeignRegion> {
        match &self.region {
            Region::Foreign(region) => Some(region),
            Region::Host(_) | Region::Device(_) => None,
        }
    }

    /// Replaces foreign memory with an immutable copy. Leaves other memory unchanged.
    ///
    /// # Errors
    ///
    /// Returns an error if the memory has been removed, or no memory is left for the copy.
    pub fn make_owned(&mut self) -> Result<(), ForeignMemoryError> {
        if let Region::Foreign(region) = &self.region {
            let copied = region.copy()?;
            *self = Self { host_policies: self.host_policies.take(), ..copied };
        }
        Ok(())
    }

    /// The bytes' location in device memory, even if others may change them.
    #[must_use]
    pub fn device_location(&self) -> Option<DeviceRegion> {
        match &self.region {
            Region::Host(_) => None,
            Region::Device(region) => Some(region.clone()),
            Region::Foreign(region) => region.device(),
        }
    }

    /// The device region, if the bytes are in device memory.
    #[must_use]
    pub const fn device_region(&self) -> Option<&DeviceRegion> {
        match &self.region {
            Region::Host(_) | Region::Foreign(_) => None,
            Region::Device(region) => Some(region),
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes, {:?})", self.len(), self.memory_kind())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_the_bytes() {
        let buffer = Buffer::from_vec(vec![1, 2, 3]);
        let clone = buffer.clone();
        assert_eq!(buffer.host_bytes().unwrap().as_ptr(), clone.host_bytes().unwrap().as_ptr());
        assert_eq!(buffer.memory_kind(), MemoryKind::Cpu);
    }

    #[test]
    fn a_slice_reports_the_memory_that_it_retains() {
        let whole = Bytes::from(vec![7; 100]);
        let part = Buffer::from_bytes(whole.slice(5..15)).with_retained_bytes(whole.len());
        assert_eq!((part.len(), part.clone().retained_bytes()), (10, 100));
        assert_eq!(part.with_host_policy_buffers(Vec::new()).retained_bytes(), 100);
        assert_eq!(Buffer::from_bytes(whole).retained_bytes(), 100);
    }

    #[test]
    fn a_host_policy_may_have_a_buffer_of_its_own() {
        let policies = vec![(String::from("far"), Buffer::from_vec(vec![4]))];
        let buffer = Buffer::from_vec(vec![1]).with_host_policy_buffers(policies).clone();
        assert_eq!(buffer.for_host_policy("far").host_bytes().unwrap()[..], [4]);
        assert_eq!(buffer.for_host_policy("cpu").host_bytes().unwrap()[..], [1]);
        assert!(buffer.with_host_policy_buffers(Vec::new()).host_policy_buffers().is_empty());
    }

    /// Memory whose contents change with each copy.
    struct Counting(std::sync::atomic::AtomicU8);

    impl ForeignMemory for Counting {
        fn read(&self, offset: usize, byte_size: usize) -> Result<Bytes, ForeignMemoryError> {
            if offset + byte_size > 8 {
                return Err(ForeignMemoryError::Lost(String::from("gone")));
            }
            let value = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok(vec![value; byte_size].into())
        }

        fn write(&self, _: usize, _: &Buffer) -> Result<(), ForeignMemoryError> {
            Err(ForeignMemoryError::NotReadable)
        }

        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    #[test]
    fn foreign_memory_is_read_by_one_copy_that_keeps_the_charge() {
        let memory = Arc::new(Counting(7.into()));
        let charge = Arc::new(());
        let region = |byte_size, charge: Option<Arc<dyn Any + Send + Sync>>| ForeignRegion {
            memory: memory.clone(),
            offset: 4,
            byte_size,
            charge,
        };
        let mut buffer = Buffer::from_foreign(region(4, Some(charge.clone())));
        assert!(
            buffer.host_bytes().is_none()
                && buffer.device_region().is_none()
                && buffer.is_charged()
        );
        assert_eq!((buffer.len(), buffer.memory_kind()), (4, MemoryKind::Cpu));
        buffer.make_owned().unwrap();
        assert!(buffer.foreign().is_none() && buffer.is_charged());
        // The second call has nothing to copy.
        buffer.make_owned().unwrap();
        assert_eq!(buffer.host_bytes().unwrap()[..], [7; 4]);
        assert_eq!(Arc::strong_count(&charge), 2);
        drop(buffer);
        assert_eq!(Arc::strong_count(&charge), 1);
        let mut lost = Buffer::from_foreign(region(5, None));
        assert_eq!(lost.make_owned(), Err(ForeignMemoryError::Lost(String::from("gone"))));
        assert!(lost.foreign().is_some() && !lost.is_charged());
    }

    #[test]
    fn a_device_buffer_is_not_readable_and_drops_its_owner_with_the_last_clone() {
        let owner = Arc::new(());
        let buffer = Buffer::from_device(DeviceRegion {
            device: 1,
            address: 64,
            byte_size: 8,
            owner: owner.clone(),
        });
        let clone = buffer.clone();
        assert!(buffer.host_bytes().is_none());
        assert_eq!((clone.len(), clone.memory_kind()), (8, MemoryKind::Gpu(1)));
        drop((buffer, clone));
        assert_eq!(Arc::strong_count(&owner), 1);
    }
}
