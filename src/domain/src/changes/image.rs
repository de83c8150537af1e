//! Recognizes images in Base64, and reads their size without decoding their pixels.

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

/// The maximum number of characters that are decoded to find the size of an image.
const MAX_HEADER_CHARS: usize = 256 << 10;

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// The fewest bytes of an image, so that a short text is not taken for one.
const MIN_BYTES: usize = 40;

/// The format and the size of an image, as far as its first bytes tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageFacts {
    /// `PNG`, `JPEG`, `GIF` or `WebP`.
    pub kind: &'static str,
    /// Width and height in pixels.
    pub size: (u32, u32),
    pub bytes: usize,
}

impl ImageFacts {
    /// Reads the facts of an image in Base64 or a `data:` URL. Returns `None` for any other text.
    pub fn from_text(text: &str) -> Option<Self> {
        let text = text.trim();
        let encoded = match text.strip_prefix("data:image/") {
            Some(rest) => rest.split_once(";base64,")?.1,
            None => text,
        };
        let unpadded = encoded.trim_end_matches('=');
        let is_base64 = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'+' | b'/');
        if !unpadded.bytes().all(is_base64) {
            return None;
        }
        let header = &unpadded[..unpadded.len().min(MAX_HEADER_CHARS) / 4 * 4];
        let header = BASE64.decode(header).ok()?;
        let (kind, size) = kind_and_size(&header)?;
        let bytes = unpadded.len() * 3 / 4;
        (bytes >= MIN_BYTES).then_some(Self { kind, size, bytes })
    }
}

impl std::fmt::Display for ImageFacts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, size: (width, height), bytes } = self;
        write!(f, "{kind} image, {width} × {height} pixels, {bytes} bytes")
    }
}

fn kind_and_size(bytes: &[u8]) -> Option<(&'static str, (u32, u32))> {
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        let size = |offset| bytes.get(offset..offset + 4).map(read_be);
        return Some(("PNG", size(16).zip(size(20))?));
    }
    if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") {
        return Some(("GIF", u16_le(bytes, 6).zip(u16_le(bytes, 8))?));
    }
    if bytes.starts_with(b"\xff\xd8\xff") {
        return Some(("JPEG", jpeg_size(bytes)?));
    }
    if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        return Some(("WebP", webp_size(bytes)?));
    }
    None
}

/// Reads a big-endian number.
fn read_be<'b>(bytes: impl IntoIterator<Item = &'b u8>) -> u32 {
    bytes.into_iter().fold(0, |n, byte| (n << 8) | u32::from(*byte))
}

fn u16_be(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..offset + 2).map(read_be)
}

fn u16_le(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..offset + 2).map(|b| read_be(b.iter().rev()))
}

/// Follows the segments to the frame header, which holds the size.
fn jpeg_size(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut offset = 2;
    loop {
        let &[0xff, marker] = bytes.get(offset..offset + 2)? else { return None };
        // The start of a frame (SOF0 to SOF15). DHT, JPG and DAC in this range are other segments.
        if matches!(marker, 0xc0..=0xcf) && !matches!(marker, 0xc4 | 0xc8 | 0xcc) {
            return u16_be(bytes, offset + 7).zip(u16_be(bytes, offset + 5));
        }
        let length = usize::try_from(u16_be(bytes, offset + 2)?).ok()?;
        offset += 2 + length.max(2);
    }
}

fn webp_size(bytes: &[u8]) -> Option<(u32, u32)> {
    let u24_le = |offset: usize| bytes.get(offset..offset + 3).map(|b| read_be(b.iter().rev()));
    match bytes.get(12..16)? {
        b"VP8X" => Some((u24_le(24)? + 1, u24_le(27)? + 1)),
        b"VP8 " => Some((u16_le(bytes, 26)? & 0x3fff, u16_le(bytes, 28)? & 0x3fff)),
        b"VP8L" => {
            let bits = u16_le(bytes, 21)? | (u16_le(bytes, 23)? << 16);
            Some(((bits & 0x3fff) + 1, ((bits >> 14) & 0x3fff) + 1))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A PNG of one pixel.
    const PNG: &str =
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

    fn facts(header: &[u8]) -> Option<ImageFacts> {
        ImageFacts::from_text(&BASE64.encode([header, &[0; MIN_BYTES]].concat()))
    }

    #[test]
    fn size_is_read_from_the_header() {
        let shown = "PNG image, 1 × 1 pixels, 70 bytes";
        assert_eq!(ImageFacts::from_text(PNG).unwrap().to_string(), shown);
        assert_eq!(ImageFacts::from_text(&format!("data:image/png;base64,{PNG}\n")).unwrap().to_string(), shown);
        let size = |header: &[u8]| facts(header).unwrap().size;
        assert_eq!(size(b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x0b\x08\x00\x02\x01\x00\x03"), (256, 2));
        assert_eq!(size(b"GIF89a\x03\x00\x04\x01rest"), (3, 260));
        assert_eq!(size(b"RIFF\0\0\0\0WEBPVP8X\0\0\0\0\0\0\0\0\x0f\0\0\x1f\0\0"), (16, 32));
    }

    #[test]
    fn other_texts_are_not_images() {
        for text in ["", "hello", "aGVsbG8=", "data:image/png,x", "iVBORw0KGgo<script>", "data:text/html;base64,PHA+"] {
            assert_eq!(ImageFacts::from_text(text), None, "{text}");
        }
        assert_eq!(ImageFacts::from_text(&BASE64.encode(b"GIF89a\x03\x00\x04\x01")), None, "it is too short");
        // A segment of length zero does not loop.
        assert_eq!(facts(&[b"\xff\xd8".as_slice(), &b"\xff\xe0\0\0".repeat(30)].concat()), None);
    }
}
