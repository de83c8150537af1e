//! Where a body is gathered. A large one has pages of its own, which go back to the system with it: an allocator may
//! keep what was freed, and a server that was sent a gigabyte once would look as if it still had it.

use bytes::{Bytes, BytesMut};
use memmap2::{MmapMut, MmapOptions};

/// From so many bytes on it has pages of its own.
const LARGE: usize = 64 << 10;

/// A body as it comes in.
pub enum Buffer {
    Small(BytesMut),
    Large(Pages),
}

/// Pages of the system, the first bytes of which are used. Those that nothing was written to take no memory.
pub struct Pages {
    map: MmapMut,
    used: usize,
}

impl AsRef<[u8]> for Pages {
    fn as_ref(&self) -> &[u8] {
        self.map.get(..self.used).unwrap_or_default()
    }
}

impl Buffer {
    /// Begins with these bytes.
    #[must_use]
    pub fn new(first: Bytes) -> Self {
        Self::Small(BytesMut::from(first))
    }

    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Small(bytes) => bytes.len(),
            Self::Large(pages) => pages.used,
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds bytes; there will never be more than `max` in all.
    pub fn push(&mut self, chunk: &[u8], max: usize) {
        if let Self::Small(bytes) = self
            && bytes.len() + chunk.len() > LARGE
            && let Some(mut pages) = Pages::new(max)
            && pages.push(bytes)
        {
            *self = Self::Large(pages);
        }
        match self {
            Self::Small(bytes) => bytes.extend_from_slice(chunk),
            Self::Large(pages) => {
                if pages.push(chunk) {
                    return;
                }
                let mut bytes = BytesMut::from(pages.as_ref());
                bytes.extend_from_slice(chunk);
                *self = Self::Small(bytes);
            }
        }
    }

    #[must_use]
    pub fn freeze(self) -> Bytes {
        match self {
            Self::Small(bytes) => bytes.freeze(),
            Self::Large(pages) => Bytes::from_owner(pages),
        }
    }
}

impl Pages {
    /// Room for so many bytes; `None` where the system has none.
    fn new(max: usize) -> Option<Self> {
        let map = MmapOptions::new().len(max.max(1)).no_reserve_swap().map_anon();
        let map = map.inspect_err(|error| tracing::debug!(%error, "no pages of its own for a body")).ok()?;
        // Huge pages would take many times what is written.
        #[cfg(target_os = "linux")]
        if let Err(error) = map.advise(memmap2::Advice::NoHugePage) {
            tracing::trace!(%error, "pages may be huge ones");
        }
        Some(Self { map, used: 0 })
    }

    /// `false` where they do not fit in.
    #[must_use]
    fn push(&mut self, chunk: &[u8]) -> bool {
        let end = self.used + chunk.len();
        let Some(room) = self.map.get_mut(self.used..end) else { return false };
        room.copy_from_slice(chunk);
        self.used = end;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_what_was_pushed_whatever_its_size() {
        for (chunk, count) in [(1, 3), (1000, 60), (1000, 600), (300_000, 5), (LARGE, 2)] {
            let chunk: Vec<u8> = (0..chunk).map(|n| u8::try_from(n % 251).unwrap()).collect();
            let mut buffer = Buffer::new(Bytes::copy_from_slice(&chunk));
            (1..count).for_each(|_| buffer.push(&chunk, chunk.len() * count));
            assert_eq!(buffer.len(), chunk.len() * count);
            assert_eq!(matches!(buffer, Buffer::Large(_)), buffer.len() > LARGE);
            assert!(buffer.freeze() == chunk.repeat(count));
        }
    }

    #[test]
    fn more_than_was_announced_is_taken_all_the_same() {
        let mut buffer = Buffer::new(Bytes::from(vec![1; LARGE]));
        buffer.push(&[2; 100], LARGE + 100);
        buffer.push(&[3; 100], LARGE + 100);
        let all = buffer.freeze();
        assert_eq!((all.len(), all[LARGE], all[LARGE + 199]), (LARGE + 200, 2, 3));
    }
}
