//! The tenants of a running server.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use arc_swap::ArcSwap;
use galatea_gate::access::{ApiCategory, TenantDirectory, TenantNumber, TenantRefusal};
use galatea_policy::{TenantLimits, TenantUsage, Time};
use galatea_stdx::Lock;

use crate::document::{TenantEntry, TenantsDocument};
use crate::key::{KeyHash, KeyId};

/// The tenants of a server, which a new document replaces as a whole.
///
/// A tenant keeps its number while the server runs, even if a document lacks it in between.
pub struct ServerTenants {
    begin: Instant,
    table: ArcSwap<Table>,
}

#[derive(Default)]
struct Table {
    keys: BTreeMap<KeyId, Owner>,
    /// The tenants by number, beginning with 1; `None` if the tenant no longer exists.
    tenants: Vec<Option<Tenant>>,
    /// The numbers of all tenants that have existed.
    numbers: BTreeMap<String, TenantNumber>,
}

#[derive(Copy, Clone)]
struct Owner {
    hash: KeyHash,
    tenant: TenantNumber,
}

#[derive(Clone)]
struct Tenant {
    entry: TenantEntry,
    /// `None` without a limit. A tenant whose limit hasn't changed keeps its use.
    usage: Option<Arc<Lock<TenantUsage>>>,
    counts: Arc<RequestCounts>,
}

/// The inference requests of a tenant.
#[derive(Default)]
struct RequestCounts {
    admitted: AtomicU64,
    refused: AtomicU64,
}

/// The inference requests of a tenant since the start of the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TenantReading {
    /// The tenant's name.
    pub name: String,
    /// The requests within the tenant's limits.
    pub admitted: u64,
    /// The requests beyond the tenant's limits.
    pub refused: u64,
}

impl Table {
    fn tenant(&self, number: TenantNumber) -> Option<&Tenant> {
        self.tenants.get(index(number))?.as_ref()
    }

    /// Returns the number of the tenant with this name, a new one if there was none.
    fn number(&mut self, name: &str) -> TenantNumber {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX).saturating_add(1);
        let number = TenantNumber(NonZeroU32::new(next).unwrap_or(NonZeroU32::MIN));
        self.numbers.insert(name.to_owned(), number);
        number
    }
}

fn index(number: TenantNumber) -> usize {
    number.0.get() as usize - 1
}

impl ServerTenants {
    /// Creates a directory with the tenants of a document.
    #[must_use]
    pub fn new(document: TenantsDocument) -> Self {
        let directory = Self { begin: Instant::now(), table: ArcSwap::default() };
        directory.replace(document);
        directory
    }

    /// Puts another document into use. Only one thread may call this function at a time.
    pub fn replace(&self, document: TenantsDocument) {
        let before = self.table.load();
        let mut table = Table { numbers: before.numbers.clone(), ..Table::default() };
        for entry in document.tenants {
            let number = table.number(&entry.name);
            for key in &entry.keys {
                table.keys.insert(key.id.clone(), Owner { hash: key.hash, tenant: number });
            }
            let old = before.tenant(number);
            let counts = old.map_or_else(Arc::default, |old| old.counts.clone());
            let limit = entry.requests_per_second;
            let usage = match old.filter(|old| old.entry.requests_per_second == limit) {
                Some(old) => old.usage.clone(),
                None => self.unused(limit),
            };
            let index = index(number);
            if table.tenants.len() <= index {
                table.tenants.resize(index + 1, None);
            }
            table.tenants[index] = Some(Tenant { entry, usage, counts });
        }
        self.table.store(Arc::new(table));
    }

    /// The requests of all tenants.
    #[must_use]
    pub fn read(&self) -> Vec<TenantReading> {
        let table = self.table.load();
        let reading = |tenant: &Tenant| TenantReading {
            name: tenant.entry.name.clone(),
            admitted: tenant.counts.admitted.load(Ordering::Relaxed),
            refused: tenant.counts.refused.load(Ordering::Relaxed),
        };
        table.tenants.iter().flatten().map(reading).collect()
    }

    fn unused(&self, requests: Option<u64>) -> Option<Arc<Lock<TenantUsage>>> {
        let limits = TenantLimits { requests: Some(requests?), ..TenantLimits::default() };
        Some(Arc::new(Lock::new(TenantUsage::new(&limits, self.now()))))
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl TenantDirectory for ServerTenants {
    fn identify(
        &self,
        key: Option<&[u8]>,
        category: ApiCategory,
    ) -> Result<TenantNumber, TenantRefusal> {
        let key = key.ok_or(TenantRefusal::MissingKey)?;
        let table = self.table.load();
        let owner = KeyId::of_key(key).and_then(|id| table.keys.get(&id));
        let owner = owner.filter(|owner| owner.hash.is_same(KeyHash::of_key(key)));
        let owner = owner.ok_or(TenantRefusal::UnknownKey)?;
        let tenant = table.tenant(owner.tenant).ok_or(TenantRefusal::UnknownKey)?;
        if !tenant.entry.allows(category) {
            return Err(TenantRefusal::ForbiddenApi(category));
        }
        Ok(owner.tenant)
    }

    fn count_request(&self, tenant: TenantNumber) -> Result<(), TenantRefusal> {
        let table = self.table.load();
        let tenant = table.tenant(tenant).ok_or(TenantRefusal::UnknownKey)?;
        let counted = match &tenant.usage {
            None => Ok(()),
            Some(usage) => usage.lock("count a request").admit(self.now(), 0),
        };
        let counts = &tenant.counts;
        let count = if counted.is_ok() { &counts.admitted } else { &counts.refused };
        count.fetch_add(1, Ordering::Relaxed);
        counted.map_err(|exceeded| {
            let milliseconds = exceeded.retry_after_ns.div_ceil(1_000_000);
            let retry_after_ms = u32::try_from(milliseconds).unwrap_or(u32::MAX);
            TenantRefusal::TooManyRequests { retry_after_ms }
        })
    }
}

/// Shows no hashes.
impl fmt::Debug for ServerTenants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenants = self.table.load().tenants.iter().flatten().count();
        f.debug_struct("ServerTenants").field("tenants", &tenants).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::TenantKey;
    use crate::key::MadeKey;

    fn entry(name: &str, key: &MadeKey, apis: &str, limit: Option<u64>) -> TenantEntry {
        let mut entry = TenantEntry::new(name).unwrap();
        let hash = KeyHash::of_key(key.text.as_bytes());
        entry.keys.push(TenantKey { id: key.id.clone(), hash });
        entry.set_apis(apis).unwrap();
        entry.requests_per_second = limit;
        entry
    }

    fn document(tenants: &[TenantEntry]) -> TenantsDocument {
        TenantsDocument { tenants: tenants.to_vec() }
    }

    #[test]
    fn a_key_names_a_tenant_with_its_apis() {
        let (a, b) = (MadeKey::random().unwrap(), MadeKey::random().unwrap());
        let tenants = [entry("a", &a, "inference", None), entry("b", &b, "trace", None)];
        let directory = ServerTenants::new(document(&tenants));
        let identify = |key: &str, category| directory.identify(Some(key.as_bytes()), category);
        let first = identify(&a.text, ApiCategory::Inference).unwrap();
        let second = identify(&b.text, ApiCategory::Trace).unwrap();
        assert_ne!(first, second);
        let forbidden = TenantRefusal::ForbiddenApi(ApiCategory::Trace);
        assert_eq!(identify(&a.text, ApiCategory::Trace), Err(forbidden));
        let missing = directory.identify(None, ApiCategory::Inference);
        assert_eq!(missing, Err(TenantRefusal::MissingKey));
        // The ID of one key with the secret of another is no key.
        let mixed = format!("{}{}", &a.text[..20], &b.text[20..]);
        for wrong in ["", "x", mixed.as_str(), &a.text[1..]] {
            let refused = identify(wrong, ApiCategory::Inference);
            assert_eq!(refused, Err(TenantRefusal::UnknownKey), "{wrong}");
        }
    }

    #[test]
    fn a_replaced_document_keeps_numbers_and_the_use_of_limits() {
        let (a, b) = (MadeKey::random().unwrap(), MadeKey::random().unwrap());
        let limited = entry("a", &a, "inference", Some(1));
        let other = entry("b", &b, "inference", None);
        let directory = ServerTenants::new(document(&[limited.clone(), other.clone()]));
        let number =
            |key: &MadeKey| directory.identify(Some(key.text.as_bytes()), ApiCategory::Inference);
        let (first, second) = (number(&a).unwrap(), number(&b).unwrap());
        assert_eq!(directory.count_request(first), Ok(()));
        directory.replace(document(&[other.clone(), limited]));
        assert_eq!((number(&a), number(&b)), (Ok(first), Ok(second)));
        let refused = directory.count_request(first).unwrap_err();
        assert!(matches!(refused, TenantRefusal::TooManyRequests { retry_after_ms: 1..=1000 }));
        assert_eq!(directory.read().first().map(|one| (one.admitted, one.refused)), Some((1, 1)));
        directory.replace(document(&[other]));
        assert_eq!(number(&a), Err(TenantRefusal::UnknownKey));
        assert_eq!(directory.count_request(first), Err(TenantRefusal::UnknownKey));
        assert_eq!(directory.count_request(second), Ok(()));
        let read = |name: &str, admitted, refused| TenantReading {
            name: name.to_owned(),
            admitted,
            refused,
        };
        assert_eq!(directory.read(), [read("b", 1, 0)]);
        // Another limit begins unused.
        directory.replace(document(&[entry("a", &a, "inference", Some(2))]));
        assert_eq!(number(&a), Ok(first));
        assert_eq!(directory.count_request(first), Ok(()));
    }
}
