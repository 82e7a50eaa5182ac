//! Memory that a driver knows, as long as somebody has it.

use crate::driver::{Attachment, Driver, DriverError, MemorySource};
use std::sync::Arc;

/// Attached memory. Dropping the last owner waits for all copies of this process and detaches it.
#[derive(Debug)]
pub struct KvMemory<D: Driver> {
    driver: Arc<D>,
    attachment: Option<Attachment>,
}

impl<D: Driver> KvMemory<D> {
    /// Attaches memory to a driver.
    ///
    /// # Errors
    ///
    /// The conditions of [`Driver::attach`].
    pub fn attach(driver: &Arc<D>, source: MemorySource) -> Result<Arc<Self>, DriverError> {
        let attachment = Some(driver.attach(source)?);
        Ok(Arc::new(Self { driver: driver.clone(), attachment }))
    }

    /// The memory, as the driver knows it.
    pub fn attachment(&self) -> &Attachment {
        self.attachment.as_ref().expect("only `drop` takes it")
    }

    pub(crate) fn driver(&self) -> &Arc<D> {
        &self.driver
    }
}

impl<D: Driver> Drop for KvMemory<D> {
    fn drop(&mut self) {
        let Some(attachment) = self.attachment.take() else { return };
        if let Err(error) = self.driver.detach(attachment) {
            tracing::warn!(%error, "the driver keeps memory that nobody uses");
        }
    }
}
