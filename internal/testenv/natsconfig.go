package testenv

import (
	"fmt"
	"net/url"
	"path/filepath"

	"github.com/nats-io/nats-server/v2/server"
)

// A NATSConfig says how a NATS server with JetStream is run. Its zero value
// does for most tests.
type NATSConfig struct {
	// Dir holds the streams. Empty means a temporary folder that is removed
	// with the server; a named one stays.
	Dir string
	// Port for clients. Zero means a free one.
	Port int
	// SyncAlways flushes each message to disk before it is acknowledged.
	SyncAlways bool
	// ConfigFile is a nats-server configuration to begin with. Address, port,
	// JetStream's folder and what is set here beat it.
	ConfigFile string
	// MaxPayload is the largest message in bytes. Zero means the server's
	// default, 1 MiB.
	MaxPayload int32
	// User and Password, or Token, are what clients have to show. Empty means
	// that everybody may do everything.
	User, Password, Token string
	// ServerName is the server's name, unique in its cluster. Empty means one
	// made of the port.
	ServerName string
	// Cluster, ClusterPort and Routes make the server a member of a cluster:
	// the cluster's name, the port for other members, and their addresses
	// (nats://127.0.0.1:PORT). Empty means a server on its own.
	// [Env.StartNATSCluster] fills them in.
	Cluster     string
	ClusterPort int
	Routes      []string
}

// options translates the configuration; Dir and Port are set.
func (c NATSConfig) options() (*server.Options, error) {
	o := new(server.Options)
	if c.ConfigFile != "" {
		var err error
		if o, err = server.ProcessConfigFile(c.ConfigFile); err != nil {
			return nil, fmt.Errorf("read the nats-server configuration %s: %w", c.ConfigFile, err)
		}
	}
	o.Host, o.Port = "127.0.0.1", c.Port
	o.JetStream, o.StoreDir = true, c.Dir
	if c.SyncAlways {
		o.SyncAlways = true
	}
	if c.MaxPayload != 0 {
		o.MaxPayload = c.MaxPayload
	}
	if c.User != "" {
		o.Username, o.Password = c.User, c.Password
	}
	if c.Token != "" {
		o.Authorization = c.Token
	}
	if o.ServerName == "" || c.ServerName != "" {
		o.ServerName = c.name()
	}
	if c.Cluster != "" {
		o.Cluster.Name, o.Cluster.Host, o.Cluster.Port = c.Cluster, "127.0.0.1", c.ClusterPort
		for _, route := range c.Routes {
			u, err := url.Parse(route)
			if err != nil {
				return nil, fmt.Errorf("read the route %q: %w", route, err)
			}
			o.Routes = append(o.Routes, u)
		}
	}
	return o, nil
}

func (c NATSConfig) name() string {
	if c.ServerName != "" {
		return c.ServerName
	}
	return fmt.Sprintf("walrelay-%d", c.Port)
}

// url is how clients reach the server, with what they have to show.
func (c NATSConfig) url() string {
	u := url.URL{Scheme: "nats", Host: loopback(c.Port)}
	switch {
	case c.Token != "":
		u.User = url.User(c.Token)
	case c.User != "":
		u.User = url.UserPassword(c.User, c.Password)
	}
	return u.String()
}

// storeDir is where nats-server puts what it keeps in Dir.
func (c NATSConfig) storeDir() string { return filepath.Join(c.Dir, "jetstream") }
