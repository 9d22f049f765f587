//go:build (linux && !cgo) || darwin || windows

package main

import (
	"context"
	"os"

	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/daemon"
)

func environment() command.Env {
	return command.Env{
		Version:       version(),
		Getenv:        os.LookupEnv,
		CheckPolicy:   daemon.CheckPolicy,
		ExplainPolicy: daemon.ExplainPolicy,
		Config:        showConfig,
		Serve: func(ctx context.Context, o command.ServeOptions) error {
			c, err := daemon.Configure(configInput(o))
			if err != nil {
				return err
			}
			c.Config.Version, c.Config.Log = version(), os.Stderr
			return daemon.Run(ctx, c.Config)
		},
		Box: func(ctx context.Context, o command.BoxOptions) error {
			c, err := daemon.Configure(configInput(o.ServeOptions))
			if err != nil {
				return err
			}
			c.Config.Version, c.Config.Log = version(), os.Stderr
			c.Config.Box = &daemon.Box{Host: o.Address, Port: o.Port, In: o.In, Out: o.Out}
			return daemon.Run(ctx, c.Config)
		},
		InProcess: func(ctx context.Context, home string, sandbox bool) (*client.Client, func(context.Context) error, error) {
			conf, err := daemon.Configure(configInput(command.ServeOptions{Home: home}))
			if err != nil {
				return nil, nil, err
			}
			conf.Config.Version, conf.Config.Ready = version(), sandbox
			in, err := daemon.Begin(ctx, conf.Config)
			if err != nil {
				return nil, nil, err
			}
			c, err := client.New(client.Options{Host: "http://cloche", Dial: in.Dial})
			if err != nil {
				return nil, nil, err
			}
			return c, in.Close, nil
		},
	}
}

// configInput is what a configuration is found in, for these flags.
func configInput(o command.ServeOptions) daemon.ConfigInput {
	flags := map[string][]string{}
	for key, v := range map[string]string{"home": o.Home, "settings_file": o.Settings, "policy_file": o.Config, "tls.cert": o.TLSCert, "tls.key": o.TLSKey} {
		if v != "" {
			flags[key] = []string{v}
		}
	}
	for key, v := range map[string][]string{"listen": o.Listen, "hosts": o.HostNames, "origins": o.Origins, "e2b.listen": o.E2B} {
		if len(v) > 0 {
			flags[key] = v
		}
	}
	if o.JSON {
		flags["log.format"] = []string{"json"}
	}
	return daemon.ConfigInput{Flags: flags, Environ: os.Environ(), DefaultHome: client.DefaultHome()}
}

func showConfig(o command.ServeOptions) (command.ConfigView, error) {
	c, err := daemon.Configure(configInput(o))
	if err != nil {
		return command.ConfigView{}, err
	}
	shown, err := c.Show()
	if err != nil {
		return command.ConfigView{}, err
	}
	v := command.ConfigView{Warnings: c.Warnings}
	for _, s := range shown {
		v.Settings = append(v.Settings, command.ConfigSetting{Key: s.Key, Value: s.Value, Source: s.Source})
	}
	return v, nil
}
