package command

import (
	"reflect"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

func TestNamingFlags(t *testing.T) {
	got, err := (&NamingFlags{template: "{a}_{sender_id}", identity: []string{
		"launcher_type=group", "launcher_id=-1=2", "sender_id=张三", "query_id=", "a=b", "sender=x",
	}}).Naming()
	want := api.Naming{NameTemplate: "{a}_{sender_id}", Identity: &api.Identity{
		LauncherType: "group", LauncherID: "-1=2", SenderID: "张三", Variables: map[string]string{"a": "b", "sender": "x"},
	}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := (&NamingFlags{}).Naming(); err != nil || got.Identity != nil {
		t.Errorf("no flags give %+v, %v", got, err)
	}
	for _, bad := range []string{"", "=x", "launcher_id", "global=x", "a=\xff"} {
		_, err := (&NamingFlags{identity: []string{bad}}).Naming()
		wantInvalid(t, bad, err)
	}
	_, err = (&NamingFlags{template: "\xff"}).Naming()
	wantInvalid(t, "template", err)
}
