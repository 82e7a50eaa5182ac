package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

// store holds the samples of pages in memory.
type store struct {
	series map[string]*promql.Series
}

func newStore() *store {
	return &store{series: map[string]*promql.Series{}}
}

// scrape adds the samples of a page, with the labels of its target, at its time.
func (s *store) scrape(page page) error {
	symbols := labels.NewSymbolTable()
	parsing, err := textparse.New([]byte(page.Text), "application/openmetrics-text", symbols, textparse.ParserOptions{})
	if err != nil {
		return err
	}
	for {
		entry, err := parsing.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("page of %v: %w", page.Labels, err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var found labels.Labels
		parsing.Labels(&found)
		_, _, value := parsing.Series()
		builder := labels.NewBuilder(found)
		for name, value := range page.Labels {
			builder.Set(name, value)
		}
		s.add(builder.Labels(), promql.FPoint{T: millis(page.At), F: value})
	}
}

func (s *store) add(of labels.Labels, point promql.FPoint) {
	key := of.String()
	if s.series[key] == nil {
		s.series[key] = &promql.Series{Metric: of}
	}
	s.series[key].Floats = append(s.series[key].Floats, point)
}

// Querier makes the store a storage.Queryable.
func (s *store) Querier(mint, maxt int64) (storage.Querier, error) {
	return querier{s}, nil
}

type querier struct{ store *store }

func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var found []storage.Series
	for _, series := range q.store.series {
		if matches(series.Metric, matchers) {
			found = append(found, promql.NewStorageSeries(*series))
		}
	}
	slices.SortFunc(found, func(a, b storage.Series) int { return labels.Compare(a.Labels(), b.Labels()) })
	return &set{series: found, at: -1}
}

func matches(of labels.Labels, matchers []*labels.Matcher) bool {
	return !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(of.Get(m.Name)) })
}

func (querier) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, errors.New("not asked by queries")
}

func (querier) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, errors.New("not asked by queries")
}

func (querier) Close() error { return nil }

// set is a storage.SeriesSet of series in order.
type set struct {
	series []storage.Series
	at     int
}

func (s *set) Next() bool                        { s.at++; return s.at < len(s.series) }
func (s *set) At() storage.Series                { return s.series[s.at] }
func (s *set) Err() error                        { return nil }
func (s *set) Warnings() annotations.Annotations { return nil }
