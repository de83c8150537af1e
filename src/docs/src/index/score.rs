//! Relevance, from 0 to 1.
//!
//! **Words.** A term of the query that `n` of `N` passages have weighs `w = ln(1 + (N + 100 - n) / (n + 0.5))`: the more, the
//! rarer it is. (The 100 stand for passages of other collections, so that a small collection does not take each of its words
//! for a common one.) What a term adds to a passage is its BM25 there, as a part of the most that it could be: from 0 to 1.
//! The match `m` of a passage is the mean of these, by weight; terms that occur nowhere count, with 0. The match of a document
//! is 0.7 of that of its best passage and 0.3 of what all its passages have together.
//!
//! **Meaning.** How far the cosine of query and passage stands above what is usual for this query in this collection: in
//! standard deviations, `z = (cosine - mean) / deviation`. So no model needs a scale of its own.
//!
//! Each becomes a relevance by a logistic curve, `1 / (1 + exp((middle - x) / width))`, whose constants were chosen so that
//! 0.5 and 0.7 tell apart what answers the questions of the test set and what does not (`docs/knowledge.md`). Together, a
//! document's evidence is `1 - (1 - words) (1 - meaning)`, and what is shown is that evidence lowered by its places in both
//! rankings (reciprocal rank fusion, k = 60): `evidence * (0.5 + 0.5 * fused)`, where `fused` is 1 for the first of both.

/// Constants of reciprocal rank fusion.
const K: f64 = 60.0;

struct Curve {
    middle: f64,
    width: f64,
}

const WORDS: Curve = Curve { middle: 0.33, width: 0.07 };
const MEANING: Curve = Curve { middle: 3.0, width: 0.6 };

/// Passages that the deviation of cosines says something of.
const FEW: usize = 30;
/// What the deviation is at least, where there are few.
const LEAST_DEVIATION: f64 = 0.05;

impl Curve {
    fn at(&self, x: f64) -> f64 {
        1.0 / (1.0 + ((self.middle - x) / self.width).exp())
    }
}

/// What a term weighs that `n` of `all` passages have.
pub(super) fn weight(n: usize, all: usize) -> f64 {
    let (n, all) = (n as f64, all as f64);
    (1.0 + (all + 100.0 - n) / (n + 0.5)).ln()
}

/// A match of words as relevance.
pub(super) fn of_words(matched: f64) -> f64 {
    // Nothing matched is nothing, and all of it is all.
    let (low, high) = (WORDS.at(0.0), WORDS.at(1.0));
    ((WORDS.at(matched) - low) / (high - low)).clamp(0.0, 1.0)
}

/// What is usual among cosines.
pub(super) struct Usual {
    mean: f64,
    deviation: f64,
}

impl Usual {
    pub fn of(cosines: impl Iterator<Item = f64> + Clone) -> Self {
        let count = cosines.clone().count().max(1) as f64;
        let mean = cosines.clone().sum::<f64>() / count;
        let variance = cosines.map(|cosine| (cosine - mean).powi(2)).sum::<f64>() / count;
        let few = count < FEW as f64;
        Self { mean, deviation: variance.sqrt().max(if few { LEAST_DEVIATION } else { 1e-6 }) }
    }

    /// A cosine as relevance.
    pub fn relevance(&self, cosine: f64) -> f64 {
        MEANING.at((cosine - self.mean) / self.deviation)
    }
}

/// The relevance by both, with the places in both rankings, from 0; `None` for what is in only one of them.
pub(super) fn fused(words: f64, meaning: f64, places: (Option<usize>, Option<usize>)) -> f64 {
    let of = |place: Option<usize>| place.map_or(0.0, |place| (K + 1.0) / (K + 1.0 + place as f64));
    let reciprocal = (of(places.0) + of(places.1)) / 2.0;
    let evidence = 1.0 - (1.0 - words) * (1.0 - meaning);
    evidence * (0.5 + 0.5 * reciprocal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relevance_is_from_0_to_1_and_rises() {
        let words: Vec<f64> = (0..=100).map(|at| of_words(f64::from(at) / 100.0)).collect();
        assert!(words.is_sorted() && words[0] == 0.0 && (words[100] - 1.0).abs() < 1e-9, "{words:?}");
        let usual = Usual::of((0..1000).map(|at| 0.7 + f64::from(at % 100) / 1000.0));
        let meaning: Vec<f64> = (0..=100).map(|at| usual.relevance(f64::from(at) / 100.0)).collect();
        assert!(meaning.is_sorted() && meaning.iter().all(|score| (0.0..=1.0).contains(score)));
        assert!(usual.relevance(0.75) < 0.05 && usual.relevance(0.95) > 0.95);
    }

    #[test]
    fn rare_terms_weigh_more_and_a_small_collection_has_no_common_ones() {
        assert!(weight(1, 10_000) > 2.0 * weight(1000, 10_000));
        assert!(weight(1, 1) > 0.7 * weight(0, 1));
        assert!(weight(10_000, 10_000) > 0.0);
    }

    #[test]
    fn what_both_rankings_have_first_is_the_most_relevant() {
        let first = fused(0.8, 0.8, (Some(0), Some(0)));
        assert!(first > fused(0.8, 0.8, (Some(0), Some(5))) && first > fused(0.8, 0.0, (Some(0), None)));
        assert!(fused(1.0, 1.0, (Some(0), Some(0))) <= 1.0);
        assert_eq!(fused(0.0, 0.0, (None, None)), 0.0);
        assert!(Usual::of(std::iter::empty()).relevance(0.5).is_finite());
    }
}
