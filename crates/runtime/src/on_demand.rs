//! A runtime that is opened when the first model needs it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use galatea_infer::Status;
use galatea_stdx::Lock;

/// Creates a runtime from the library at a path.
type OpenRuntime<T> = dyn Fn(&Path) -> Result<Arc<T>, Status> + Send + Sync;

/// A runtime whose library is searched for and opened when the first model needs it. Failures are
/// not cached, because the library may be installed while the server is running.
pub struct RuntimeOnDemand<T: ?Sized> {
    find: Box<dyn Fn() -> Result<PathBuf, Status> + Send + Sync>,
    open: Box<OpenRuntime<T>>,
    opened: Lock<Option<(PathBuf, Arc<T>)>>,
}

impl<T: ?Sized> RuntimeOnDemand<T> {
    /// Describes how the library is found, and how the runtime is created from it.
    #[must_use]
    pub fn new(
        find: impl Fn() -> Result<PathBuf, Status> + Send + Sync + 'static,
        open: impl Fn(&Path) -> Result<Arc<T>, Status> + Send + Sync + 'static,
    ) -> Self {
        Self { find: Box::new(find), open: Box::new(open), opened: Lock::default() }
    }

    /// The path of the library, which need not be open.
    ///
    /// # Errors
    ///
    /// A message that says what to install.
    pub fn find(&self) -> Result<PathBuf, Status> {
        self.opened_path().map_or_else(|| (self.find)(), Ok)
    }

    /// The runtime.
    ///
    /// # Errors
    ///
    /// An error if the library isn't found, or can't be opened.
    pub fn get(&self) -> Result<Arc<T>, Status> {
        // The lock is held during this time, so that the library is opened only once.
        let mut opened = self.opened.lock("find or open a runtime");
        if let Some((_, runtime)) = &*opened {
            return Ok(runtime.clone());
        }
        let path = (self.find)()?;
        let runtime = (self.open)(&path)?;
        *opened = Some((path, runtime.clone()));
        Ok(runtime)
    }

    /// The runtime, if it is open.
    pub fn opened(&self) -> Option<Arc<T>> {
        self.opened.lock("find an open runtime").as_ref().map(|(_, runtime)| runtime.clone())
    }

    /// The path of the library, if it is open.
    pub fn opened_path(&self) -> Option<PathBuf> {
        self.opened.lock("find an open library").as_ref().map(|(path, _)| path.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_library_is_opened_once_and_may_be_installed_later() {
        let (attempts, opens) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (seen, made) = (attempts.clone(), opens.clone());
        let runtime = RuntimeOnDemand::<str>::new(
            move || match attempts.fetch_add(1, Ordering::Relaxed) {
                0 | 1 => Err(Status::not_found("nothing")),
                _ => Ok(PathBuf::from("/a.so")),
            },
            move |path| {
                opens.fetch_add(1, Ordering::Relaxed);
                Ok(Arc::from(path.to_string_lossy()))
            },
        );
        assert!(runtime.find().is_err() && runtime.get().is_err());
        assert_eq!((runtime.opened(), runtime.opened_path()), (None, None));
        for _ in 0..2 {
            assert_eq!(&*runtime.get().unwrap(), "/a.so");
            assert_eq!(runtime.find().unwrap(), Path::new("/a.so"));
        }
        assert_eq!((seen.load(Ordering::Relaxed), made.load(Ordering::Relaxed)), (3, 1));
        assert!(runtime.opened().is_some());
    }
}
