//! Links: one writer, one reader, bounded; the writer rings the reader's core once per batch, and only if it sleeps.

use std::sync::Arc;

use crate::sync::parked::Parked;
use crate::sys::cpu::Event;

/// How a core is woken: a flag that it sets before it sleeps and an eventfd that its io_uring polls.
#[derive(Debug)]
pub struct Doorbell {
    /// Set while the core sleeps.
    pub parked: Parked,
    /// What wakes it.
    pub event: Event,
}

impl Doorbell {
    /// A doorbell of its own.
    ///
    /// # Errors
    /// When the kernel gives no eventfd (descriptor limit).
    pub fn new() -> std::io::Result<Arc<Doorbell>> {
        Ok(Arc::new(Doorbell { parked: Parked::default(), event: Event::new()? }))
    }

    /// Wakes the core if it sleeps. Call it after the items are in the link.
    #[inline]
    pub fn ring(&self) {
        if self.parked.take() {
            self.event.signal();
        }
    }
}

/// The writing end of a link.
pub struct LinkSender<T> {
    producer: rtrb::Producer<T>,
    doorbell: Arc<Doorbell>,
    dirty: bool,
}

/// The reading end of a link.
pub struct LinkReceiver<T> {
    consumer: rtrb::Consumer<T>,
}

/// A link of `capacity` items whose reader is the core behind `doorbell`.
pub fn link<T>(capacity: usize, doorbell: &Arc<Doorbell>) -> (LinkSender<T>, LinkReceiver<T>) {
    let (producer, consumer) = rtrb::RingBuffer::new(capacity);
    (LinkSender { producer, doorbell: doorbell.clone(), dirty: false }, LinkReceiver { consumer })
}

impl<T> LinkSender<T> {
    /// Appends an item; gives it back when the link is full. The reader sees it at once; a sleeping reader is woken
    /// by [`LinkSender::flush`].
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), T> {
        match self.producer.push(item) {
            Ok(()) => {
                self.dirty = true;
                Ok(())
            }
            Err(rtrb::PushError::Full(item)) => Err(item),
        }
    }

    /// Room for items, at least this many.
    pub fn free(&self) -> usize {
        self.producer.slots()
    }

    /// Items that fit.
    pub fn capacity(&self) -> usize {
        self.producer.buffer().capacity()
    }

    /// Ends the batch: wakes the reader if something was pushed and it sleeps.
    #[inline]
    pub fn flush(&mut self) {
        if self.dirty {
            self.dirty = false;
            self.doorbell.ring();
        }
    }
}

impl<T> LinkReceiver<T> {
    /// The oldest item.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        self.consumer.pop().ok()
    }

    /// Items waiting.
    pub fn len(&self) -> usize {
        self.consumer.slots()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.consumer.is_empty()
    }

    /// Whether the writer is gone (its worker ended) and everything it sent has been taken.
    pub fn is_closed(&self) -> bool {
        self.consumer.is_abandoned() && self.consumer.is_empty()
    }
}
