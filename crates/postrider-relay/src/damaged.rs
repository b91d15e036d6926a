//! Inputs that are almost right, for tests of what reads bytes from outside.

use fastrand::Rng;

/// Inputs made of samples by a few changes each: so many, and the same ones for the same seed.
pub(crate) fn damaged(
    samples: &[Vec<u8>],
    seed: u64,
    count: usize,
) -> impl Iterator<Item = Vec<u8>> {
    let mut rng = Rng::with_seed(seed);
    (0..count).map(move |_| {
        let mut input = samples[rng.usize(..samples.len())].clone();
        for _ in 0..rng.usize(1..5) {
            change(&mut input, samples, &mut rng);
        }
        input
    })
}

fn change(input: &mut Vec<u8>, samples: &[Vec<u8>], rng: &mut Rng) {
    let at = rng.usize(..=input.len());
    match rng.u8(..5) {
        0 => input.truncate(at),
        1 => input.insert(at, rng.u8(..)),
        2 if at < input.len() => input[at] ^= 1 << rng.u8(..8),
        3 if at < input.len() => {
            let end = rng.usize(at..input.len());
            input.drain(at..end);
        }
        _ => {
            let other = &samples[rng.usize(..samples.len())];
            let from = rng.usize(..=other.len());
            input.splice(at..at, other[from..].iter().copied().take(64));
        }
    }
}
