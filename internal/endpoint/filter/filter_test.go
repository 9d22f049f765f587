package filter_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/internal/endpoint/filter"
)

const removedNote = "[removed: this sandbox has no network, and what stood here is for the provider to fetch]"

// TestStrip: in each dialect what the provider would do by itself is taken out, and
// what the client does itself stays.
func TestStrip(t *testing.T) {
	text := func(typ string) string { return `{"type":"` + typ + `","text":"` + removedNote + `"}` }
	for _, c := range []struct {
		name, body, want string // an empty want is the body, byte by byte
		removed          []string
	}{
		// Chat completions.
		{"plain chat", `{"model": "m",  "messages":[{"role":"user","content":"see https://example.com"}], "n": 1.0}`, "", nil},
		{"functions", `{"tools":[{"type":"function","function":{"name":"web_search","parameters":{"properties":{"file_id":{},"url":{}}}}},{"type":"custom","custom":{"name":"x"}}],"tool_choice":"auto"}`, "", nil},
		{"web search option", `{"model":"m","web_search_options":{},"messages":[]}`, `{"model":"m","messages":[]}`, []string{"web_search_options"}},
		{"nothing asked for", `{"web_search":false,"container":null,"tools":null}`, "", nil},
		{"data url", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA","detail":"low"}}]}]}`, "", nil},
		{
			"media", `{"messages":[{"role":"user","content":[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"https://evil.example/?q=secret"}},{"type":"file","file":{"file_id":"file-1"}}]}]}`,
			`{"messages":[{"role":"user","content":[{"type":"text","text":"look"},` + text("text") + `,` + text("text") + `]}]}`,
			[]string{"messages[0].content[1]", "messages[0].content[2]"},
		},
		{"file data", `{"messages":[{"role":"user","content":[{"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,AAAA"}},{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}]}]}`, "", nil},
		{
			"file data that is elsewhere", `{"messages":[{"role":"user","content":[{"type":"file","file":{"file_data":"https://evil.example/a.pdf"}}]}]}`,
			`{"messages":[{"role":"user","content":[` + text("text") + `]}]}`, []string{"messages[0].content[0]"},
		},
		{"what a model said to a tool", `{"messages":[{"role":"assistant","tool_calls":[{"type":"function","function":{"name":"f","arguments":"{\"file_id\":\"x\",\"url\":\"http://a\"}"}}]}]}`, "", nil},
		{"of other providers", `{"plugins":[{"id":"web"}],"search_parameters":{"mode":"on"},"enable_search":true}`, `{}`, []string{"plugins", "search_parameters", "enable_search"}},
		{"a search tool of another provider", `{"tools":[{"type":"web_search","web_search":{"enable":true}},{"type":"builtin_function","function":{"name":"$web_search"}}]}`, `{}`, []string{"tools[0]", "tools[1]"}},

		// Responses.
		{
			"hosted tools", `{"model":"m","tools":[{"type":"web_search_preview"},{"type":"function","name":"f"},{"type":"code_interpreter","container":{"type":"auto"}},{"type":"mcp","server_url":"https://evil.example"},{"type":"file_search","vector_store_ids":["v"]},{"type":"local_shell"}],"tool_choice":{"type":"web_search_preview"}}`,
			`{"model":"m","tools":[{"type":"function","name":"f"},{"type":"local_shell"}]}`, []string{"tools[0]", "tools[2]", "tools[3]", "tools[4]", "tool_choice"},
		},
		{"only hosted tools", `{"tools":[{"type":"web_search"}],"tool_choice":"required","parallel_tool_calls":true,"input":"x"}`, `{"input":"x"}`, []string{"tools[0]", "tool_choice", "parallel_tool_calls"}},
		{
			"input", `{"input":[{"role":"user","content":[{"type":"input_file","file_url":"https://x.example/a"},{"type":"input_image","image_url":"data:image/png;base64,A"},{"type":"input_image","file_id":"f"}]},{"type":"function_call_output","call_id":"c","output":[{"type":"input_image","image_url":"http://x/"}]},{"type":"function_call","arguments":"{}"}]}`,
			`{"input":[{"role":"user","content":[` + text("input_text") + `,{"type":"input_image","image_url":"data:image/png;base64,A"},` + text("input_text") + `]},{"type":"function_call_output","call_id":"c","output":[` + text("input_text") + `]},{"type":"function_call","arguments":"{}"}]}`,
			[]string{"input[0].content[0]", "input[0].content[2]", "input[1].output[0]"},
		},
		{"a screenshot", `{"input":[{"type":"computer_call_output","current_url":"https://a.example","output":{"type":"computer_screenshot","image_url":"data:image/png;base64,A"}}]}`, "", nil},
		{"a stored prompt", `{"prompt":{"id":"pmpt_1"},"input":"x"}`, `{"input":"x"}`, []string{"prompt"}},
		{"tools that come later", `{"input":[{"type":"tool_search_output","tools":[{"type":"mcp","server_url":"x"}]}]}`, `{"input":[{"type":"tool_search_output","tools":[]}]}`, []string{"input[0].tools[0]"}},
		{"chosen tools", `{"tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"},{"type":"mcp","server_label":"x"}]}}`, `{"tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"}]}}`, []string{"tool_choice.tools[1]"}},

		// Completions.
		{"a prompt", `{"model":"m","prompt":"search https://x","max_tokens":5}`, "", nil},
		{"prompts", `{"prompt":["a","b"],"web_search_options":{}}`, `{"prompt":["a","b"]}`, []string{"web_search_options"}},

		// Messages.
		{"tools of the client's", `{"tools":[{"name":"f","input_schema":{}},{"type":"bash_20250124","name":"bash"},{"type":"text_editor_20250728","name":"e"},{"type":"custom","name":"g","input_schema":{}}],"tool_choice":{"type":"tool","name":"f"}}`, "", nil},
		{
			"tools of the provider's", `{"tools":[{"name":"f","input_schema":{}},{"type":"web_search_20250305","name":"web_search"},{"type":"code_execution_20250825","name":"c"},{"type":"web_fetch_20250910","name":"w"},{"type":"mcp_toolset","mcp_server_name":"x"}],"mcp_servers":[{"type":"url","url":"https://x"}],"container":{"skills":[]}}`,
			`{"tools":[{"name":"f","input_schema":{}}]}`, []string{"tools[1]", "tools[2]", "tools[3]", "tools[4]", "mcp_servers", "container"},
		},
		{
			"sources", `{"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"https://x"}},{"type":"document","source":{"type":"file","file_id":"f"}},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"A"}},{"type":"document","source":{"type":"text","media_type":"text/plain","data":"see http://x"}},{"type":"container_upload","file_id":"f"}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{"type":"url","url":"http://y"}}]}]},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{"file_id":"x","image_url":"http://z"}}]}]}`,
			`{"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[` + text("text") + `,` + text("text") + `,{"type":"image","source":{"type":"base64","media_type":"image/png","data":"A"}},{"type":"document","source":{"type":"text","media_type":"text/plain","data":"see http://x"}},` + text("text") + `]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[` + text("text") + `]}]},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{"file_id":"x","image_url":"http://z"}}]}]}`,
			[]string{"messages[0].content[0]", "messages[0].content[1]", "messages[0].content[4]", "messages[1].content[0].content[0]"},
		},
		{
			"within a document", `{"messages":[{"role":"user","content":[{"type":"document","source":{"type":"content","content":[{"type":"image","source":{"type":"url","url":"http://x"}}]}}]}]}`,
			`{"messages":[{"role":"user","content":[{"type":"document","source":{"type":"content","content":[` + text("text") + `]}}]}]}`, []string{"messages[0].content[0].source.content[0]"},
		},

		// What some reader takes for the same.
		{"letters", `{"Tools":[{"Type":"web_search"}],"MCP_servers":[1],"MeSSages":[{"Content":[{"Image_URL":"http://x"}]}]}`, `{"MeSSages":[{"Content":[` + text("text") + `]}]}`, []string{"tools[0]", "mcp_servers", "messages[0].content[0]"}},
		{"another s", `{"toolſ":[{"type":"web_search"}]}`, `{}`, []string{"tools[0]"}},
		{"escapes", `{"\u0074ools":[{"type":"\u0077eb_search"}],"messages":[{"content":[{"type":"image_url","image_url":{"url":"\u0068ttp://x"}}]}]}`, `{"messages":[{"content":[` + text("text") + `]}]}`, []string{"tools[0]", "messages[0].content[0]"}},
		{"case of a type", `{"tools":[{"type":"Function"}]}`, `{}`, []string{"tools[0]"}},
		{"a space before data", `{"messages":[{"content":[{"type":"image_url","image_url":" DATA:image/png;base64,A"}]}]}`, "", nil},
	} {
		out, removed, err := filter.Strip([]byte(c.body))
		want := c.want
		if want == "" {
			want = c.body
		}
		if err != nil || string(out) != want || !slices.Equal(removed, c.removed) {
			t.Errorf("%s: %s\n%q, %v", c.name, out, removed, err)
		}
	}
}

// TestAddressesWithoutScheme: what an address is expected in is one without its scheme
// too, whatever the name that some provider has for it.
func TestAddressesWithoutScheme(t *testing.T) {
	for name, stays := range map[string]bool{"url": false, "uri": false, "image_url": false, "file_uri": false, "fileUri": false, "URL": false, "data": true} {
		body := `{"messages":[{"content":[{"type":"image_url","image_url":{"` + name + `":"evil.example/x"}}]}]}`
		out, removed, err := filter.Strip([]byte(body))
		if err != nil || stays != (string(out) == body) || stays != (len(removed) == 0) || !stays && bytes.Contains(out, []byte("evil")) {
			t.Errorf("%s: %s, %q, %v", name, out, removed, err)
		}
	}
}

// TestMany: what is told of is bounded, what is taken out is not.
func TestMany(t *testing.T) {
	part := `{"type":"image_url","image_url":"http://x.example/"}`
	out, removed, err := filter.Strip([]byte(`{"messages":[{"content":[` + strings.Repeat(part+",", 500) + part + `]}]}`))
	if err != nil || len(removed) != 64 || bytes.Contains(out, []byte("x.example")) {
		t.Errorf("%d told, %v, %.200s", len(removed), err, out)
	}
}

// TestUnreadable: what two readers could take for two things goes nowhere, and neither
// does a model that searches by itself.
func TestUnreadable(t *testing.T) {
	for name, body := range map[string]string{
		"twice":              `{"tools":[],"tools":[{"type":"web_search"}]}`,
		"twice in letters":   `{"tools":[],"TOOLS":[{"type":"web_search"}]}`,
		"twice in escapes":   `{"tools":[],"\u0074ools":[{"type":"web_search"}]}`,
		"twice in a tool":    `{"tools":[{"type":"function","type":"web_search"}]}`,
		"twice in a part":    `{"messages":[{"content":[{"type":"text","image_url":"data:","image_url":"http://x"}]}]}`,
		"twice in a choice":  `{"tools":[{"type":"function"}],"tool_choice":{"type":"function","type":"mcp"}}`,
		"no JSON":            `model=m&tools=web_search`,
		"two of them":        `{} {"tools":[{"type":"web_search"}]}`,
		"an array":           `[{"tools":[]}]`,
		"a string":           `"{}"`,
		"cut":                `{"tools":[{"type":"web_search"}]`,
		"a comment":          `{"tools":[] /* */}`,
		"a comma":            `{"tools":[],}`,
		"NaN":                `{"temperature":NaN,"tools":[{"type":"web_search"}]}`,
		"a mark":             "\ufeff{}",
		"not UTF-8":          "{\"tools\xff\":[{\"type\":\"web_search\"}]}",
		"UTF-16":             "{\x00}\x00",
		"deep":               `{"messages":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`,
		"content in content": `{"messages":` + strings.Repeat(`{"content":`, 20) + `[]` + strings.Repeat("}", 20) + `}`,
		"tools of no kind":   `{"tools":"web_search"}`,
		"":                   ``,
	} {
		if out, _, err := filter.Strip([]byte(body)); !errors.Is(err, filter.ErrUnreadable) {
			t.Errorf("%s: %s, %v", name, out, err)
		}
	}
	for model, want := range map[string]bool{
		`"gpt-4o"`: false, `"gpt-4o-search-preview"`: true, `"gpt-5-search-api"`: true, `"o3-deep-research"`: true, `"x/y:online"`: true,
		`"perplexity/sonar-pro"`: true, `"Search-R1-7B"`: false, `"research-7b"`: false, `["a","b:online"]`: true, `"gpt-4o-SEARCH-preview-2025"`: true,
	} {
		if _, _, err := filter.Strip([]byte(`{"model":` + model + `}`)); errors.Is(err, filter.ErrModel) != want {
			t.Errorf("%s: %v", model, err)
		}
		if _, _, err := filter.Strip([]byte(`{"models":[` + model + `]}`)); errors.Is(err, filter.ErrModel) != want {
			t.Errorf("models %s: %v", model, err)
		}
	}
}

// TestPaths: the parts of an API that are known are let through or looked into, the
// rest of it is not there, and other paths pass unchanged.
func TestPaths(t *testing.T) {
	for _, c := range []struct {
		method, path string
		want         filter.Kind
	}{
		{"POST", "/v1/chat/completions", filter.Model}, {"POST", "/v1/responses", filter.Model}, {"POST", "/v1/completions", filter.Model}, {"POST", "/v1/messages", filter.Model},
		{"POST", "/rollout/k1/v1/chat/completions", filter.Model}, {"POST", "/v1/messages/count_tokens", filter.Model}, {"POST", "/openai/deployments/d/chat/completions", filter.Model},
		{"POST", "/V1/Chat/Completions/", filter.Model}, {"POST", "//v1//chat//completions", filter.Model}, {"POST", "/v1/chat%2fcompletions", filter.Model}, {"POST", "/v1/%63hat/completions;x=y", filter.Model},
		{"POST", "/v1beta/openai/chat/completions", filter.Model}, {"POST", "/v1/projects/p/endpoints/openapi/chat/completions", filter.Model}, {"POST", "/v1/threads/t/messages", filter.Denied},
		{"GET", "/v1/models", filter.Plain}, {"GET", "/v1/models/org/m", filter.Plain}, {"POST", "/v1/embeddings", filter.Plain}, {"GET", "/v1/responses/r1", filter.Plain}, {"GET", "/v1", filter.Plain},
		{"POST", "/v1/files", filter.Denied}, {"POST", "/v1/batches", filter.Denied}, {"POST", "/v1/messages/batches", filter.Denied}, {"POST", "/v1/assistants", filter.Denied}, {"POST", "/v1/threads/t/runs", filter.Denied},
		{"GET", "/v1/realtime", filter.Denied}, {"POST", "/v1beta/models/g:generateContent", filter.Denied}, {"POST", "/v1/files/v1/models", filter.Denied}, {"POST", "/v1/conversations", filter.Denied},
		{"POST", "/v1/responses/r1/cancel", filter.Plain}, {"GET", "/v1/responses/r1/input_items", filter.Plain}, {"DELETE", "/v1/responses/r1", filter.Plain},
		{"POST", "/v1/responses/r1/input_items", filter.Denied}, {"GET", "/v1/responses/r1/other", filter.Denied}, {"POST", "/v1/responses/r1/x/cancel", filter.Denied},
		{"POST", "/v1/responses/r1", filter.Denied}, {"POST", "/v1/batches/b/cancel", filter.Denied}, {"GET", "/v1/batches/b", filter.Denied}, {"DELETE", "/v1/models/m", filter.Denied},
		{"POST", "/models/g:streamGenerateContent", filter.Denied}, {"POST", "/model/m/converse", filter.Denied},
		{"POST", "/vf/tools/x", filter.Other}, {"GET", "/", filter.Other}, {"GET", "/healthz", filter.Other}, {"GET", "/verbatim/x", filter.Other},
	} {
		if got := filter.Of(c.method, c.path, false); got != c.want {
			t.Errorf("%s %s: %d, want %d", c.method, c.path, got, c.want)
		}
	}
	if filter.Of("GET", "/v1/responses", true) != filter.Denied || filter.Of("GET", "/ws", true) != filter.Other {
		t.Error("another protocol on a part of an API")
	}
}

// FuzzStrip: whatever comes, what goes on is JSON in which nothing more is to be taken
// out, however the reader takes its letters.
func FuzzStrip(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","tools":[{"type":"web_search"},{"type":"function"}],"tool_choice":{"type":"web_search"}}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}],"mcp_servers":[]}`,
		`{"input":[{"role":"assistant","content":[{"file_id":"x"}]}],"prompt":{"id":"x"}}`, `{"a":1,"A":2}`, `[]`, `{"system":[{"source":{"type":"url"}}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		out, removed, err := filter.Strip(body)
		if err != nil {
			return
		}
		if !json.Valid(out) || len(removed) == 0 && !bytes.Equal(out, body) {
			t.Fatalf("%s of %s", out, body)
		}
		again, more, err := filter.Strip(out)
		if err != nil || len(more) > 0 || !bytes.Equal(again, out) {
			t.Fatalf("of %s\ncame %s\nand again %s, %q, %v", body, out, again, more, err)
		}
		var top map[string]json.RawMessage // numbers may be larger than Go's are
		if err := json.Unmarshal(out, &top); err != nil {
			t.Fatal(err)
		}
		for k, v := range top {
			if strings.EqualFold(k, "mcp_servers") && string(v) != "null" && string(v) != "false" {
				t.Fatalf("%s of %s", out, body)
			}
		}
	})
}
