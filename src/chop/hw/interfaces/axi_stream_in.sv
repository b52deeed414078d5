// Input of a design from AXI4-Stream: whole bytes become beats of WIDTH bits.
//
// A tensor is BEATS transfers, the last one with TLAST, all with every byte kept. A transfer that
// breaks this rule still counts, and sets an error bit until `clear`. No transfer is taken while
// `run` is 0. Latency 1 cycle, throughput 1 transfer per cycle; TREADY depends on registers alone.
`default_nettype none

module axi_stream_in #(
    parameter int WIDTH = 8,  // bits of a beat of the design
    parameter int BYTES = 1,  // bytes of TDATA
    parameter int BEATS = 1   // transfers of one tensor
) (
    input  wire logic               aclk,
    input  wire logic               aresetn,
    input  wire logic               run,
    input  wire logic               clear,
    input  wire logic [8*BYTES-1:0] s_axis_tdata,
    input  wire logic [  BYTES-1:0] s_axis_tkeep,
    input  wire logic               s_axis_tlast,
    input  wire logic               s_axis_tvalid,
    output      logic               s_axis_tready,
    output      logic [  WIDTH-1:0] data,
    output      logic               data_valid,
    input  wire logic               data_ready,
    output      logic               starts,        // the first transfer of a tensor is taken
    output      logic               between,       // the next transfer is the first of a tensor
    output      logic               last_wrong,    // TLAST of this transfer is
    output      logic               keep_wrong,    // this transfer has a byte that is not kept
    output      logic               last_error_q,  // TLAST missing, or at another transfer
    output      logic               keep_error_q   // a byte that is not kept
);

  localparam int COUNT_WIDTH = BEATS > 1 ? $clog2(BEATS) : 1;
  localparam logic [COUNT_WIDTH-1:0] LAST = COUNT_WIDTH'(BEATS - 1);

  logic [COUNT_WIDTH-1:0] count_q;
  logic taken, is_last, slice_ready;

  assign s_axis_tready = slice_ready && run;
  assign taken         = s_axis_tvalid && s_axis_tready;
  assign is_last       = count_q == LAST;
  assign between       = count_q == '0;
  assign starts        = taken && between;
  assign last_wrong    = taken && s_axis_tlast != is_last;
  assign keep_wrong    = taken && s_axis_tkeep != '1;

  skid_buffer #(
      .DATA_WIDTH(WIDTH)
  ) u_slice (
      .clk(aclk),
      .rst(!aresetn),
      .data_in_0(s_axis_tdata[WIDTH-1:0]),
      .data_in_0_valid(taken),
      .data_in_0_ready(slice_ready),
      .data_out_0(data),
      .data_out_0_valid(data_valid),
      .data_out_0_ready(data_ready)
  );

  wire logic unused_ok = &{1'b0, s_axis_tdata};  // the bits above a beat

  always_ff @(posedge aclk) begin
    if (taken) count_q <= is_last ? '0 : count_q + 1'b1;
    if (clear) begin
      last_error_q <= 1'b0;
      keep_error_q <= 1'b0;
    end
    if (last_wrong) last_error_q <= 1'b1;
    if (keep_wrong) keep_error_q <= 1'b1;
    if (!aresetn) begin
      count_q      <= '0;
      last_error_q <= 1'b0;
      keep_error_q <= 1'b0;
    end
  end

endmodule

`default_nettype wire
