//! Relevance formulas, from 0 to 1.
//!
//! **Words.** A query term that `n` of `N` passages have weighs `w = ln(1 + (N + 100 - n) / (n + 0.5))`: the rarer, the
//! more. (The 100 stand for passages of other collections, so that in a small collection not every word counts as
//! common.) The contribution of a term to a passage is its BM25 there, divided by the maximum possible. The match `m`
//! of a passage is the weighted mean of the contributions; terms that occur nowhere count as 0. The match of a document
//! is 0.7 of its best passage's match and 0.3 of the match of all its passages together.
//!
//! **Semantic match.** The number of standard deviations by which the cosine of query and passage exceeds the mean for this
//! query in this collection: `z = (cosine - mean) / deviation`. So no model needs a scale of its own.
//!
//! **Relevance** is a logistic curve of these, `1 / (1 + exp(-x))`: for words alone `x = 12.5 m - 3.5`, for both `x =
//! 11 m + 0.7 z - 5`. The constants were chosen on the questions of `tests/knowledge/questions.json`, so that 0.5 and
//! 0.7 separate passages that answer them from those that do not; `docs/knowledge.md` says how well that works.
//!
//! **Order.** For words alone, by `m`. For both, by reciprocal rank fusion: the sum of `1 / (10 + rank)` in the two
//! rankings. A document is at least as relevant as any that ranks below it.

/// The constant of reciprocal rank fusion. The usual 60 finds less (`docs/knowledge.md`).
const RANK_CONSTANT: f64 = 10.0;

/// The minimum number of passages for a meaningful deviation of cosines.
const MIN_SAMPLE: usize = 30;
/// The minimum deviation if there are fewer passages.
const MIN_DEVIATION: f64 = 0.05;

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Returns the weight of a term that `n` of `passage_count` passages have.
pub(super) fn term_weight(n: usize, passage_count: usize) -> f64 {
    let (n, passage_count) = (n as f64, passage_count as f64);
    (1.0 + (passage_count + 100.0 - n) / (n + 0.5)).ln()
}

/// Returns the match of a document, from the match of one of its passages and that of all its passages together.
pub(super) fn document_match(passage_match: f64, joint_match: f64) -> f64 {
    0.7 * passage_match + 0.3 * joint_match
}

/// Returns the relevance of a match of words.
pub(super) fn lexical_relevance(word_match: f64) -> f64 {
    // The curve is scaled so that no match gives 0 and a full match gives 1.
    let curve = |word_match: f64| logistic(12.5 * word_match - 3.5);
    ((curve(word_match) - curve(0.0)) / (curve(1.0) - curve(0.0))).clamp(0.0, 1.0)
}

/// The mean and deviation of a query's cosines.
pub(super) struct CosineDistribution {
    mean: f64,
    deviation: f64,
    is_small_sample: bool,
}

impl CosineDistribution {
    pub fn from_cosines(cosines: impl Iterator<Item = f64> + Clone) -> Self {
        let sample_size = cosines.clone().count();
        let count = sample_size.max(1) as f64;
        let mean = cosines.clone().sum::<f64>() / count;
        let variance = cosines.map(|cosine| (cosine - mean).powi(2)).sum::<f64>() / count;
        let is_small_sample = sample_size < MIN_SAMPLE;
        Self {
            mean,
            deviation: variance.sqrt().max(if is_small_sample { MIN_DEVIATION } else { 1e-6 }),
            is_small_sample,
        }
    }

    /// Returns the number of deviations by which a cosine exceeds the mean.
    pub fn deviations_above_mean(&self, cosine: f64) -> f64 {
        (cosine - self.mean) / self.deviation
    }

    /// Returns the relevance of a match of words together with a deviation above the mean.
    pub fn fused_relevance(&self, word_match: f64, deviations: f64) -> f64 {
        let combined_relevance = logistic(11.0 * word_match + 0.7 * deviations - 5.0);
        // With few passages, the deviation says nothing.
        if self.is_small_sample { combined_relevance.max(lexical_relevance(word_match)) } else { combined_relevance }
    }
}

/// Returns the fused score of two ranks, counted from 0. A rank is `None` if the document is not in that ranking.
pub(super) fn fused_rank_score(ranks: (Option<usize>, Option<usize>)) -> f64 {
    let reciprocal = |rank: Option<usize>| rank.map_or(0.0, |rank| 1.0 / (RANK_CONSTANT + rank as f64));
    reciprocal(ranks.0) + reciprocal(ranks.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relevance_rises_from_0_to_1() {
        let words: Vec<f64> = (0..=100).map(|step| lexical_relevance(f64::from(step) / 100.0)).collect();
        assert!(words.is_sorted() && words[0] == 0.0 && (words[100] - 1.0).abs() < 1e-9, "{words:?}");
        let usual = CosineDistribution::from_cosines((0..1000).map(|step| 0.7 + f64::from(step % 100) / 1000.0));
        let scores: Vec<f64> = (0..=100)
            .map(|step| usual.fused_relevance(0.2, usual.deviations_above_mean(f64::from(step) / 100.0)))
            .collect();
        assert!(scores.is_sorted() && scores.iter().all(|score| (0.0..=1.0).contains(score)));
        assert!(
            usual.fused_relevance(0.0, usual.deviations_above_mean(0.75)) < 0.05
                && usual.fused_relevance(0.5, usual.deviations_above_mean(0.85)) > 0.8
        );
        let small = CosineDistribution::from_cosines([0.8, 0.81].into_iter());
        assert!(small.fused_relevance(0.5, small.deviations_above_mean(0.8)) >= lexical_relevance(0.5));
    }

    #[test]
    fn rare_terms_weigh_more_than_common_terms() {
        assert!(term_weight(1, 10_000) > 2.0 * term_weight(1000, 10_000));
        assert!(term_weight(1, 1) > 0.7 * term_weight(0, 1));
        assert!(term_weight(10_000, 10_000) > 0.0);
    }

    #[test]
    fn first_in_both_rankings_is_first_overall() {
        let first = fused_rank_score((Some(0), Some(0)));
        assert!(
            first > fused_rank_score((Some(0), Some(1)))
                && fused_rank_score((Some(0), Some(5))) > fused_rank_score((Some(0), None))
        );
        assert_eq!(fused_rank_score((None, None)), 0.0);
        assert!(CosineDistribution::from_cosines(std::iter::empty()).deviations_above_mean(0.5).is_finite());
    }
}
