//! Runs the entry points of `tests/fuzz` on mutations of valid messages, for a bounded number of rounds and from a
//! fixed seed, so that every run tries the same inputs. `COUNTERSIGN_FUZZ_ROUNDS` sets more.

#[path = "../fuzz/entry.rs"]
mod entry;

use std::{fs, panic, path::Path};

/// The generator xorshift64*, which suffices for mutations and is the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Returns a number below `n`, which is not 0.
    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap_or(0)
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

#[rustfmt::skip]
const TOKENS: &[&[u8]] = &[
    b"{", b"}", b"[", b"]", b",", b":", b"\"", b"\\", b"\n", b"\r", b" ", b"\0", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80",
    b"null", b"true", b"NaN", b"Infinity", b"1e999", b"-0", b"1.0", b"01", b"99999999999999999999999999",
    b"\\ud800", b"\\udc00", b"\\ud83d\\ude00", b"\\u0061", b"\\u0000", b"\\\"", b"\\\\",
    b"\"jsonrpc\":\"2.0\",", b"\"id\":1,", b"\"id\":null,", b"\"\\u0069d\":2,", b"\"method\":\"ping\",", b"\"params\":[],",
    b"\"params\":{},", b"\"result\":{},", b"\"error\":{},", b"\"_meta\":{},", b"\"name\":\"x\",", b"\"arguments\":{},",
    b"[[[[[[[[[[[[[[[[", b"]]]]]]]]]]]]]]]]", b"{\"a\":{\"a\":{\"a\":", b"=?base64?", b"?=", b"mcp-name: x\n", b"mcp-method:\n",
];

/// Returns the seeds with this prefix: in each file one message, one POST with header lines, or one stream of lines.
fn seeds(prefix: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    let mut files: Vec<_> =
        fs::read_dir(&folder).expect("the seeds").map(|entry| entry.expect("a seed").path()).collect();
    files.sort();
    files.retain(|file| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)));
    assert!(files.len() >= 2, "the seeds are there");
    files.iter().map(|file| fs::read(file).expect("a seed")).collect()
}

/// Returns the `params` of all seeds that are messages.
fn seed_params() -> Vec<Vec<u8>> {
    let messages = seeds("").into_iter().filter_map(|seed| serde_json::from_slice::<serde_json::Value>(&seed).ok());
    let mut params: Vec<_> = messages.filter_map(|m| m.get("params").map(|p| p.to_string().into_bytes())).collect();
    params.extend(seeds("params-"));
    params
}

fn mutate(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = seeds[random.below(seeds.len())].clone();
    // Sometimes no mutation: the valid messages themselves.
    for _ in 0..random.below(6) {
        let at = random.below(bytes.len() + 1);
        let end = at + random.below(bytes.len() - at + 1);
        match random.below(9) {
            0 if !bytes.is_empty() => {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
            1 => bytes.truncate(at),
            2 => drop(bytes.drain(at..end)),
            // Repeats a member, to make a duplicate key.
            3 => {
                let piece = bytes[at..end].to_vec();
                let to = random.below(bytes.len() + 1);
                bytes.splice(to..to, piece);
            }
            // Inserts a piece of another message.
            4 => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len() + 1);
                let to = from + random.below(other.len() - from + 1);
                bytes.splice(at..end, other[from..to].iter().copied());
            }
            5 => bytes = [b"[".as_slice(), &bytes, b",", &bytes, b"]"].concat(),
            6 => {
                let depth = random.below(200);
                let nested = [b"[".repeat(depth), b"1".to_vec(), b"]".repeat(depth)].concat();
                bytes.splice(at..at, nested);
            }
            _ => {
                let token = random.pick(TOKENS);
                bytes.splice(at..at, token.iter().copied());
            }
        }
        bytes.truncate(1 << 16);
    }
    bytes
}

fn rounds() -> usize {
    std::env::var("COUNTERSIGN_FUZZ_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000)
}

/// Runs an entry point on mutations; shows the input that breaks it.
fn run(seed: u64, seeds: &[Vec<u8>], entry: fn(&[u8]) -> bool) {
    let (mut random, rounds) = (Random(seed), rounds());
    let mut accepted = 0;
    for round in 0..rounds {
        let input = if let Some(valid) = seeds.get(round) { valid.clone() } else { mutate(&mut random, seeds) };
        match panic::catch_unwind(|| entry(&input)) {
            Ok(verdict) => accepted += usize::from(verdict),
            Err(_) => panic!("round {round} of seed {seed:#x} broke on \"{}\"", input.escape_ascii()),
        }
    }
    // If all mutations are refused, or all accepted, little is tested.
    assert!(accepted > rounds / 10 && accepted < rounds - rounds / 10, "{accepted} of {rounds} accepted");
}

#[test]
fn mutated_envelopes_break_no_invariant() {
    run(0x5EED_0001, &seeds(""), entry::envelope);
}

#[test]
fn mutated_params_break_no_invariant() {
    run(0x5EED_0002, &seed_params(), entry::params);
}

#[test]
fn mutated_headers_break_no_invariant() {
    run(0x5EED_0003, &seeds("post-"), entry::headers);
}

#[test]
fn mutated_lines_break_no_invariant() {
    run(0x5EED_0004, &seeds(""), entry::lines);
}

#[test]
fn mutated_frames_break_no_invariant() {
    run(0x5EED_0005, &seeds(""), entry::websocket);
}
