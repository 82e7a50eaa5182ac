// Command promql parses rules and evaluates queries with Prometheus' own engine, over metrics pages.
//
//	promql check FILE          parses a file of alerting and recording rules
//	promql eval < REQUEST      evaluates queries over pages, and prints what each gives
//
// A request is JSON: {"pages": [{"labels": {…}, "at_s": 0, "text": "…"}], "at_s": 60, "queries": ["…"]}.
// Pages are in the text format of OpenMetrics, each scraped at a time. The answer is a list, in the order
// of the queries: {"error": "…"} or {"metrics": ["…"], "series": [{"labels": {…}, "value": "0.5"}]}, with
// the metrics that the query names.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

type page struct {
	Labels map[string]string `json:"labels"`
	At     float64           `json:"at_s"`
	Text   string            `json:"text"`
}

type request struct {
	Pages   []page   `json:"pages"`
	At      float64  `json:"at_s"`
	Queries []string `json:"queries"`
}

type series struct {
	Labels map[string]string `json:"labels"`
	Value  string            `json:"value"`
}

type answer struct {
	Error   string   `json:"error,omitempty"`
	Metrics []string `json:"metrics"`
	Series  []series `json:"series"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "check":
		return check(args[1])
	case len(args) == 1 && args[0] == "eval":
		return evaluate(os.Stdin, os.Stdout)
	default:
		return fmt.Errorf("usage: promql check FILE | promql eval < REQUEST")
	}
}

// check parses a file of rules, and names all its errors.
func check(file string) error {
	_, errs := rulefmt.ParseFile(file, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.Default())
	for _, err := range errs {
		fmt.Fprintln(os.Stderr, err)
	}
	if len(errs) > 0 {
		return fmt.Errorf("%s: %d errors", file, len(errs))
	}
	return nil
}

func evaluate(in io.Reader, out io.Writer) error {
	var asked request
	if err := json.NewDecoder(in).Decode(&asked); err != nil {
		return err
	}
	store := newStore()
	for _, page := range asked.Pages {
		if err := store.scrape(page); err != nil {
			return err
		}
	}
	engine := promql.NewEngine(promql.EngineOpts{
		Logger:     slog.New(slog.NewTextHandler(os.Stderr, nil)),
		MaxSamples: 1_000_000,
		Timeout:    time.Minute,
	})
	answers := make([]answer, 0, len(asked.Queries))
	for _, query := range asked.Queries {
		answers = append(answers, one(engine, store, query, asked.At))
	}
	return json.NewEncoder(out).Encode(answers)
}

// one evaluates a query at a time.
func one(engine *promql.Engine, store *store, query string, at float64) answer {
	ctx := context.Background()
	asked, err := engine.NewInstantQuery(ctx, store, nil, query, time.UnixMilli(millis(at)))
	if err != nil {
		return answer{Error: err.Error()}
	}
	defer asked.Close()
	result := asked.Exec(ctx)
	if result.Err != nil {
		return answer{Error: result.Err.Error()}
	}
	found := answer{Metrics: named(query), Series: []series{}}
	switch value := result.Value.(type) {
	case promql.Vector:
		for _, sample := range value {
			found.Series = append(found.Series, series{sample.Metric.Map(), text(sample.F)})
		}
	case promql.Scalar:
		found.Series = append(found.Series, series{nil, text(value.V)})
	default:
		return answer{Error: fmt.Sprintf("it gives a %s", result.Value.Type())}
	}
	return found
}

// named lists the metrics that a query names. It has been parsed before.
func named(query string) []string {
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		return nil
	}
	names := []string{}
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			names = append(names, selector.Name)
		}
		return nil
	})
	return names
}

func text(value float64) string {
	return strconv.FormatFloat(value, 'g', -1, 64)
}

func millis(seconds float64) int64 {
	return int64(seconds * 1000)
}
